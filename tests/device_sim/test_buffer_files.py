"""Large buffers pass from process to process through files."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from device_sim.simulation.buffer_files import BufferFiles
from edge_fl.core.errors import RunError
from edge_fl.training.update import Update

FRAME = bytes(range(256)) * 400


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[BufferFiles, BufferFiles]]:
    """One that asks and one that answers, with two messages under way."""
    made = BufferFiles.make(2, tmp_path)
    assert made.folder is not None
    opened = BufferFiles.open(made.folder)
    yield made, opened
    made.close()
    opened.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing beyond that fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_arrays_and_updates_arrive_as_they_were(ends: tuple[BufferFiles, BufferFiles]) -> None:
    array = np.arange(5000, dtype=np.float32).reshape(50, 100)
    memory = np.arange(3000, dtype=np.float64)
    memory.flags.writeable = False
    packed = ends[0].ask([Update(FRAME, 0.5, {"memory": memory}, b"withheld"), array, array.T, np.arange(3)])
    assert len(packed.pickle) < 1500
    update, whole, turned, small = ends[1].take(packed)
    assert (update.frame, update.loss, update.withheld) == (FRAME, 0.5, b"withheld")
    assert type(update.frame) is type(update.withheld) is bytes
    np.testing.assert_array_equal(update.state["memory"], memory)
    assert not update.state["memory"].flags.writeable
    np.testing.assert_array_equal(whole, array)
    np.testing.assert_array_equal(turned, array.T)
    np.testing.assert_array_equal(small, np.arange(3))
    whole[:] = 1  # it is the receiver's own


def test_a_file_is_used_again_once_its_answer_was_taken(ends: tuple[BufferFiles, BufferFiles]) -> None:
    """Whichever answer is taken first."""
    asks, answers = ends
    sent = [np.full(size, number, dtype=np.int64) for number, size in enumerate((9000, 20_000, 700, 12_000))]
    under_way = [asks.ask(sent[0]), asks.ask(sent[1])]
    answered = [answers.answer(-answers.take(packed), packed) for packed in under_way]
    np.testing.assert_array_equal(asks.take_back(answered[1]), -sent[1])
    third = asks.ask(sent[2])
    np.testing.assert_array_equal(answers.take(third), sent[2])
    np.testing.assert_array_equal(asks.take_back(answered[0]), -sent[0])
    np.testing.assert_array_equal(answers.take(asks.ask(sent[3])), sent[3])


def test_nothing_is_left_of_the_files(tmp_path: Path) -> None:
    before = descriptors()
    made = BufferFiles.make(2, tmp_path)
    assert made.folder is not None
    opened = BufferFiles.open(made.folder)
    assert list(tmp_path.iterdir()) == []  # both ends have them, and neither a name
    opened.take(made.ask(np.zeros(9000)))
    for end in (made, opened, BufferFiles.make(2, tmp_path)):  # of the last there is one end alone
        end.close()
        end.close()
    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_full_disk_is_a_sentence_and_the_next_message_arrives(ends: tuple[BufferFiles, BufferFiles]) -> None:
    asks, answers = ends
    for number in range(3):
        with files_of_at_most(10_000), pytest.raises(RunError, match=r"Free some space .* another in TMPDIR"):
            asks.ask(np.zeros(9000))
        packed = asks.ask(np.full(9000, number))
        np.testing.assert_array_equal(answers.take(packed), np.full(9000, number))
        with files_of_at_most(10_000), pytest.raises(RunError, match=r"Free some space .* another in TMPDIR"):
            answers.answer(np.zeros(9000), packed)
        np.testing.assert_array_equal(asks.take_back(answers.answer(np.ones(9000), packed)), np.ones(9000))


def test_no_folder_for_temporary_files_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(RunError, match=r"No such file or directory.*another in TMPDIR"):
        BufferFiles.make(1)


def test_without_descriptors_nothing_is_left_half_made(tmp_path: Path) -> None:
    whole, before = BufferFiles.make(6, tmp_path), descriptors()
    assert whole.folder is not None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, most[1]))
    try:
        with pytest.raises(RunError, match="Too many open files"):
            BufferFiles.make(50, tmp_path)
        for each in range(50):
            (whole.folder / str(each)).touch()
        with pytest.raises(OSError, match="Too many open files"):
            BufferFiles.open(whole.folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == [whole.folder]
    whole.close()


def test_files_that_are_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        BufferFiles.open(tmp_path / "none")


def test_a_file_with_less_than_its_message_says_is_found_out(ends: tuple[BufferFiles, BufferFiles]) -> None:
    packed = ends[0].ask(np.zeros(9000))
    with pytest.raises(EOFError):
        ends[1].take(packed._replace(sizes=[(size + 1, readonly) for size, readonly in packed.sizes]))
