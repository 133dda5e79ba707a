"""Where updates are while they come, and afterwards."""

import os
import resource
from pathlib import Path

import pytest

from broker.rounds import Report
from broker.update_file import UpdateFile
from edge_fl.core.content import CHUNK_SIZE
from edge_fl.core.errors import StateError
from edge_fl.transport.transfer import cut

ROOM = 2 * CHUNK_SIZE


def test_chunks_of_many_clients_come_in_any_order(tmp_path: Path) -> None:
    file = UpdateFile(tmp_path / "updates" / "00001.frames", ROOM)
    contents = {client: client.encode() * (ROOM - number) for number, client in enumerate("abc")}
    places = {client: file.place(client, len(content)) for client, content in contents.items()}
    for index in (1, 0):
        for client, content in contents.items():
            places[client].put(index, cut(content)[index])
    for client, content in contents.items():
        assert places[client].whole() == content
        assert Report(1, 0.0, len(content), file.path, file.offset(client)).content() == content


def test_another_update_of_a_client_takes_no_more_room(tmp_path: Path) -> None:
    file = UpdateFile(tmp_path / "updates" / "00001.frames", ROOM)
    for content in (b"first", b"second", b"3rd"):
        place = file.place("a", len(content))
        place.put(0, content)
        assert place.whole() == content
    assert (file.offset("a"), file.offset("b")) == (0, ROOM)
    assert 512 * file.path.stat().st_blocks < ROOM  # what nobody wrote to takes none of the disk


def test_the_file_reaches_beyond_all_that_is_given_out(tmp_path: Path) -> None:
    path, room = tmp_path / "updates" / "00001.frames", 5 << 20
    file = UpdateFile(path, room)
    for number in range(8):
        assert file.offset(f"client-{number}") == number * room
        assert path.stat().st_size >= (number + 1) * room
    assert UpdateFile(path, room).offset("client-0") >= 8 * room


def test_a_file_that_could_not_grow_keeps_what_it_takes_later(
    tmp_path: Path,
) -> None:
    path, room = tmp_path / "updates" / "00001.frames", 20 << 20
    file = UpdateFile(path, room)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file.place("a", 5).put(0, b"taken")
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        for _ in range(2):
            with pytest.raises(StateError, match="cannot be written"):
                file.offset("b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.place("b", 5).put(0, b"later")
    file.offset("c")
    assert Report(1, 0.0, 5, path, file.offset("a")).content() == b"taken"
    assert Report(1, 0.0, 5, path, file.offset("b")).content() == b"later"
    assert path.stat().st_size >= 3 * room


def test_a_system_that_writes_and_reads_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: write(file, data[:3], offset))
    monkeypatch.setattr(os, "pread", lambda file, size, offset: read(file, min(size, 3), offset))
    place, content = (
        UpdateFile(tmp_path / "updates" / "1", ROOM).place("a", CHUNK_SIZE + 8),
        os.urandom(CHUNK_SIZE + 8),
    )
    for index in (1, 0):
        place.put(index, cut(content)[index])
    assert place.whole() == content


def test_an_update_of_one_chunk_is_not_read_again(tmp_path: Path) -> None:
    file = UpdateFile(tmp_path / "updates" / "00001.frames", ROOM)
    place, content = file.place("a", 5), b"whole"
    place.put(0, content)
    assert place.whole() is content
    assert place.whole() == content  # on disk, too


def test_what_a_killed_process_has_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "updates" / "00001.frames"
    killed = UpdateFile(path, ROOM)
    killed.place("a", 5).put(0, b"taken")
    late = killed.place("c", 5)  # whose chunk a worker of the killed process still writes
    again = UpdateFile(path, ROOM)
    again.place("b", 5).put(0, b"later")
    late.put(0, b"stray")
    assert path.read_bytes()[:5] == b"taken"
    assert Report(1, 0.0, 5, path, again.offset("b")).content() == b"later"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "updates").write_bytes(b"in the way")
    with pytest.raises(StateError, match=r"updates.* cannot be written"):
        UpdateFile(tmp_path / "updates" / "00001.frames", ROOM)
