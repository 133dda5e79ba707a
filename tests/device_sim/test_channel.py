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
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, Channel]]:
    """Both ends, whose files are in the test's folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
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


def test_no_file_has_a_name_once_it_was_received(ends: tuple[Channel, Channel], tmp_path: Path) -> None:
    ends[0].send(FRAME)  # bytes by themselves go through the pipe
    ends[0].send(np.zeros(9000))
    assert ends[1].receive() == FRAME
    assert list(tmp_path.iterdir()) != []
    ends[1].receive()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_sentence_and_the_next_message_arrives(
    ends: tuple[Channel, Channel], tmp_path: Path
) -> None:
    with files_of_at_most(10_000), pytest.raises(RunError, match=f"{tmp_path}.*Free some space there, or name"):
        ends[0].send(np.zeros(9000))
    assert list(tmp_path.iterdir()) == []
    ends[0].send(np.ones(9000))
    np.testing.assert_array_equal(ends[1].receive(), np.ones(9000))


def test_the_end_of_a_process_is_the_end_of_its_channel(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(OSError, match="Broken pipe"):
        ends[1].send(np.zeros(9000))
