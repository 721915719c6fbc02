"""The bodies for sm_90a as ptxas leaves them: wgmma on what asynchronous copies bring."""

from emulator import ptxrun
from ptxrun.sass import assembled

# Rows of pages lie anywhere, and wgmma wants them swizzled: they come in units of 16 bytes, and tell
# an mbarrier when they have landed. All else comes in bulk.
COPIES = {"tree_attention": ["LDGSTS", "ARRIVES.LDGSTSBAR"], "": ["UBLKCP"]}


def test_wgmma_asynchronous_copies_and_no_local_memory():
    images = [ptx for ptx in ptxrun.images(90) if "_sm90_kernel" in ptx]
    kernels = {name: r for ptx in images for name, r in assembled(ptx, "sm_90a").items()}
    assert kernels
    for name, r in kernels.items():
        copies = next(copies for op, copies in COPIES.items() if op in name)
        assert all(r.count(opcode) > 0 for opcode in ["HGMMA", *copies]), name
        assert r.count("STL") == r.count("LDL") == 0, name
