import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edge_fl.core.errors import DataError
from edge_fl.data.files import RemoteFile, read_file, read_members

CONTENT = b"published" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _own_cache_and_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def published(tmp_path: Path) -> Iterator[str]:
    """A web server that publishes one file; gives its address."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "a.gz").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "www")))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/a.gz"
    server.shutdown()
    thread.join()
    server.server_close()


def closed_port() -> str:
    """An address where nothing listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Quiet) as server:
        return f"http://127.0.0.1:{server.server_port}/a.gz"


def test_the_users_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.gz").write_bytes(CONTENT)
    assert read_file(RemoteFile("set/a.gz", closed_port(), SHA256), tmp_path) == CONTENT


def test_a_damaged_file_in_the_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=rf"'{tmp_path}/a.gz' is damaged.*{SHA256}"):
        read_file(RemoteFile("a.gz", closed_port(), SHA256), tmp_path)


def test_a_folder_in_a_files_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_file(RemoteFile("a.gz", closed_port(), SHA256), tmp_path)


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_file_is_downloaded_once_with_a_progress_bar(
    tmp_path: Path, published: str, capsys: pytest.CaptureFixture[str], has_folder: bool
) -> None:
    folder = tmp_path / "empty" if has_folder else None
    assert read_file(RemoteFile("set/a.gz", published, SHA256), folder) == CONTENT
    assert "100%" in capsys.readouterr().err
    assert (tmp_path / "cache" / "edge-fl" / "set" / "a.gz").read_bytes() == CONTENT
    assert read_file(RemoteFile("set/a.gz", closed_port(), SHA256), folder) == CONTENT


def refused(file: RemoteFile) -> str:
    with pytest.raises(DataError) as caught:
        read_file(file, None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_network_the_sentence_says_what_to_do() -> None:
    url = closed_port()
    sentence = refused(RemoteFile("set/a.gz", url, SHA256))
    assert sentence.startswith(f"'set/a.gz' cannot be downloaded from {url} (")
    assert sentence.endswith("set EDGE_FL_DATA to a folder that holds the file.")


def test_a_missing_page_is_one_sentence(published: str) -> None:
    assert "404" in refused(RemoteFile("set/b.gz", published.replace("a.gz", "b.gz"), SHA256))


def test_another_file_than_the_published_one_is_not_kept(tmp_path: Path, published: str) -> None:
    assert "hash" in refused(RemoteFile("set/a.gz", published, "0" * 64)).lower()
    assert not (tmp_path / "cache" / "edge-fl" / "set" / "a.gz").exists()


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, published: str) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert "cannot be downloaded" in refused(RemoteFile("set/a.gz", published, SHA256))


def local(folder: Path, name: str, content: bytes) -> RemoteFile:
    """A file in the user's folder that nobody publishes."""
    (folder / name).write_bytes(content)
    return RemoteFile(name, closed_port(), hashlib.sha256(content).hexdigest())


def test_another_packing_is_read_where_the_folder_holds_all_of_it(tmp_path: Path, published: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    repacked = [local(own, "b.txt.gz", gzip.compress(b"b")), local(own, "c.txt", b"c")]
    offered = [RemoteFile("a.gz", published.replace("a.gz", "b.gz"), SHA256)]
    assert list(read_members(offered, repacked, own)) == [("b.txt", b"b"), ("c.txt", b"c")]
    (own / "c.txt").unlink()
    with pytest.raises(DataError, match=r"'a\.gz' cannot be downloaded"):
        list(read_members(offered, repacked, own))
    with pytest.raises(DataError, match=r"'a\.gz' cannot be downloaded"):
        list(read_members(offered, repacked, None))
    (own / "a.bin").write_bytes(CONTENT)
    assert list(read_members([RemoteFile("a.bin", closed_port(), SHA256)], repacked, own)) == [("a.bin", CONTENT)]
