"""A disk that is full or read-only: one sentence and a code, and whatever was kept before is still there."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from broker.embedded import EmbeddedBroker
from edge_fl.agent.doctor import Examined, examine
from edge_fl.agent.state import MethodState, StateFolder
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import StateError
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import Failed, Finished, Register, Registered, Verdict
from tests.agent.stage import CLIENT, RUN, Stage, frame


class Disk:
    """A file system of 1 MB."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def fill(self, *, leave: int = 0) -> None:
        """Take all room but some bytes."""
        with (self.root / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                size = file.tell()
            file.truncate(max(0, size - leave))

    def free(self) -> None:
        (self.root / "filler").unlink()

    def freeze(self) -> None:
        """Make it read-only, as a kernel does with one that is damaged, whoever has files open."""
        subprocess.run(["mount", "--bind", self.root, self.root], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", self.root], check=True)

    def thaw(self) -> None:
        subprocess.run(["umount", "--lazy", self.root], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", root], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a file system of 1 MB")
    yield Disk(root)
    while root.is_mount():
        subprocess.run(["umount", "--lazy", root], check=True)


@pytest.fixture
def address() -> Iterator[BrokerAddress]:
    with EmbeddedBroker(port=0) as broker:
        yield broker.address


def test_a_file_that_does_not_fit_leaves_the_one_before_and_no_half(disk: Disk) -> None:
    write_atomically(disk.root / "file", b"before")
    disk.fill(leave=8192)
    with pytest.raises(StateError, match=r"file' cannot be written: No space left on device\.$"):
        write_atomically(disk.root / "file", bytes(100_000))
    assert (disk.root / "file").read_bytes() == b"before"
    assert sorted(path.name for path in disk.root.iterdir()) == ["file", "filler"]
    write_atomically(disk.root / "file", b"after")  # what fits still does


def test_a_verdict_that_cannot_be_kept_is_kept_later(disk: Disk) -> None:
    state = MethodState(disk.root)
    state.stage(1, {"scores": np.ones(3)})
    disk.freeze()
    for change in (state.accept, state.discard):
        with pytest.raises(StateError, match=r"staged\.npz|accepted\.npz"):
            change()
    with pytest.raises(StateError, match="Read-only file system"):
        state.before(accepted=1)
    disk.thaw()
    assert state.before(accepted=1)["scores"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("trouble", "sentence"), [(Disk.freeze, "Read-only file system"), (Disk.fill, "No space left on device")]
)
def test_an_agent_does_not_start_on_it(disk: Disk, trouble: Callable[[Disk], None], sentence: str) -> None:
    trouble(disk)
    with pytest.raises(StateError, match=sentence):
        StateFolder(disk.root / "state", "client-1")


@pytest.mark.parametrize(
    ("trouble", "check", "sentence"),
    [
        (
            Disk.freeze,
            "state",
            "' cannot be written: Read-only file system; give it to this user, or name another",
        ),
        (Disk.fill, "disk", "has 0 MB left, and an agent wants 67 MB: free some."),
    ],
)
def test_the_doctor_sees_it(disk: Disk, trouble: Callable[[Disk], None], check: str, sentence: str) -> None:
    trouble(disk)
    agent = Examined(
        BrokerAddress("127.0.0.1", 1), CLIENT, "digits:0/10", disk.root / "state", "onnx", "edge-fl", 0.0
    )
    finding = next(finding for finding in examine(agent) if finding.check == check)
    assert (finding.level, finding.code) == ("failed", 21)
    assert sentence in finding.sentence


def test_a_bundle_that_does_not_fit_ends_the_agent_and_it_begins_again(
    disk: Disk, digits_bundle: Bundle, address: BrokerAddress
) -> None:
    disk.fill(leave=32_768)
    stage = Stage(digits_bundle, address, disk.root, "digits:0/10")
    stage.hears(Register)
    stage.say(Registered(RUN, stage.manifest))
    stage.until(lambda: bool(stage.ended))
    stage.close()
    (error,) = stage.ended
    assert isinstance(error, StateError)
    assert "and its disk has" in str(error)
    disk.free()
    stage = Stage(digits_bundle, address, disk.root, "digits:0/10")
    stage.join()
    stage.say(stage.task(model=stage.give(frame(digits_bundle, "model", 0, digits_bundle.weights()))))
    stage.offered(1)
    finish(stage)


TROUBLES = {"full": (Disk.fill, Disk.free), "read-only": (Disk.freeze, Disk.thaw)}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_round_that_cannot_be_kept_is_told_and_the_next_is_done(
    disk: Disk, digits_bundle: Bundle, address: BrokerAddress, trouble: str
) -> None:
    stage = Stage(digits_bundle, address, disk.root, "digits:0/10")
    stage.join()
    models = [stage.give(frame(digits_bundle, "model", version, digits_bundle.weights())) for version in range(3)]
    stage.say(stage.task(model=models[0]))
    stage.offered(1)
    offer = stage.heard[-1]
    stage.say(Verdict(RUN, 1, offer.update.digest, accepted=True))
    accepted = disk.root / "state" / "method" / RUN / "accepted.npz"
    stage.until(accepted.exists)
    kept = accepted.read_bytes()
    begin, end = TROUBLES[trouble]
    begin(disk)
    stage.say(stage.task(round=2, accepted=1, model=models[1]))
    stage.hears(Failed)
    failed = next(message for message in stage.heard if isinstance(message, Failed))
    assert (failed.round, failed.code) == (2, "21")
    assert "staged.npz' cannot be written: " in failed.reason
    assert accepted.read_bytes() == kept
    end(disk)
    stage.say(stage.task(round=3, accepted=1, model=models[2]))
    stage.offered(3)
    finish(stage)


def finish(stage: Stage) -> None:
    stage.say(Finished(RUN, 3))
    stage.until(lambda: bool(stage.ended))
    assert stage.ended == [None]
    stage.close()
