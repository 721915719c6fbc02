"""The bodies for sm_90a as ptxas leaves them: wgmma on what bulk or tensor copies bring."""

from emulator import ptxrun
from ptxrun.sass import assembled


def test_wgmma_bulk_copies_and_no_local_memory():
    images = [ptx for ptx in ptxrun.images(90) if "_sm90_kernel" in ptx]
    kernels = {name: r for ptx in images for name, r in assembled(ptx, "sm_90a").items()}
    assert kernels
    for name, r in kernels.items():
        assert r.count("HGMMA") > 0 and r.count("UBLKCP") + r.count("UTMALDG") > 0, name
        assert r.count("STL") == r.count("LDL") == 0, name
