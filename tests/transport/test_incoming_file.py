"""Content that goes to a file as its chunks come."""

import hashlib
from pathlib import Path

import pytest

from edge_fl.core.content import CHUNK_SIZE, Ref, ref_of
from edge_fl.core.errors import FrameError, StateError
from edge_fl.transport.incoming_file import IncomingFile
from edge_fl.transport.transfer import Fetcher, cut

CONTENT = bytes(range(256)) * 2500  # three chunks, the last one short


def test_chunks_in_any_order_become_the_file(tmp_path: Path) -> None:
    path, ref, chunks = tmp_path / "new" / "file.bin", ref_of(CONTENT), cut(CONTENT)
    fetcher, place = Fetcher(lambda _missing: None), IncomingFile(path, ref.size)
    assert fetcher.want(ref, place) is None
    for index in (2, 0):
        assert fetcher.chunk(ref.digest, index, chunks[index]) is None
    with pytest.raises(FrameError, match="damaged"):
        fetcher.chunk(ref.digest, 1, bytes(CHUNK_SIZE))
    whole = None
    for index in (1, 2, 0):
        whole = fetcher.chunk(ref.digest, index, chunks[index])
    assert isinstance(whole, memoryview)
    assert hashlib.sha256(whole).hexdigest() == ref.digest
    assert not path.exists()
    place.settle()
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_what_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    place = IncomingFile(tmp_path / "file.bin", len(CONTENT))
    place.put(0, cut(CONTENT)[0])
    place.drop()
    assert list(tmp_path.iterdir()) == []


def test_a_file_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="make room"):
        IncomingFile(tmp_path / "file.bin", 1 << 60)
    assert list(tmp_path.iterdir()) == []
    assert Ref("0" * 64, 1).chunks == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateError, match="cannot be written"):
        IncomingFile(tmp_path / "file" / "inner" / "x", 1)
