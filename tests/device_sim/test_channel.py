"""Large buffers pass from process to process through files."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest

from device_sim.simulation.channel import Channel
from edge_fl.core.errors import RunError
from edge_fl.training.update import Update

FRAME = bytes(range(256)) * 400


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Both ends."""
    ours, theirs = (Channel(connection, 2) for connection in Pipe())
    yield ours, theirs
    ours.close()
    theirs.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing beyond that fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_arrays_and_updates_arrive_as_they_were(ends: tuple[Channel, Channel]) -> None:
    array = np.arange(5000, dtype=np.float32).reshape(50, 100)
    memory = np.arange(3000, dtype=np.float64)
    memory.flags.writeable = False
    ends[0].send([Update(FRAME, 0.5, {"memory": memory}, b"withheld"), array, array.T, np.arange(3)])
    update, whole, turned, small = ends[1].receive()
    assert (update.frame, update.loss, update.withheld) == (FRAME, 0.5, b"withheld")
    assert type(update.frame) is type(update.withheld) is bytes
    np.testing.assert_array_equal(update.state["memory"], memory)
    assert not update.state["memory"].flags.writeable
    np.testing.assert_array_equal(whole, array)
    np.testing.assert_array_equal(turned, array.T)
    np.testing.assert_array_equal(small, np.arange(3))
    whole[:] = 1  # it is the receiver's own


def test_as_many_messages_as_there_are_files_may_wait(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    sent = [np.full(size, number, dtype=np.int64) for number, size in enumerate((9000, 20_000, 700, 3, 12_000))]
    ours.send(sent[0])
    for number, array in enumerate(sent[1:], start=1):
        ours.send(array)
        np.testing.assert_array_equal(theirs.receive(), sent[number - 1])
    np.testing.assert_array_equal(theirs.receive(), sent[-1])
    theirs.send(sent[1])  # the other direction has files of its own
    np.testing.assert_array_equal(ours.receive(), sent[1])


def test_no_file_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = descriptors()
    ours, theirs = (Channel(connection, 2) for connection in Pipe())
    ours.send(np.zeros(9000))
    theirs.receive()
    ours.send(np.zeros(9000))  # nobody receives this
    assert list(tmp_path.iterdir()) == []
    theirs.close()
    with pytest.raises(OSError, match="Broken pipe"):
        ours.send(np.zeros(9000))
    ours.close()
    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_full_disk_is_a_sentence_and_the_next_message_arrives(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    for received in range(3):  # a new file, and one that the other end has
        with files_of_at_most(10_000), pytest.raises(RunError, match=r"Free some space .* another in TMPDIR"):
            ours.send(np.zeros(9000))
        ours.send(np.full(9000, received))
        np.testing.assert_array_equal(theirs.receive(), np.full(9000, received))


def test_no_folder_for_temporary_files_is_a_sentence(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(RunError, match=r"No such file or directory.*another in TMPDIR"):
        ends[0].send(np.zeros(9000))


def test_the_end_of_a_process_is_the_end_of_its_channel(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()
