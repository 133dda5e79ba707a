"""What a run leaves on disk.

::

    config.json          the RunConfig
    metrics.jsonl        one line a round
    updates/             the frames of the round under way
    checkpoints/         the model after each of the last rounds, and what the server had learned besides
    weights.safetensors  the final model
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from broker.config import RunConfig
from broker.rounds import Report
from edge_fl.arrays import packed, unpacked
from edge_fl.atomic import write_atomically
from edge_fl.errors import StateError
from edge_fl.selection import Weights
from edge_fl.server_half import State
from edge_fl.wire.frame import Frame

__all__ = ["RoundMetrics", "RunFolder", "check_no_run", "run_of"]

_CHECKPOINTS = 3
_WEIGHTS, _LEARNED = ".safetensors", ".learned.npz"


class RoundMetrics(msgspec.Struct, frozen=True):
    """One line of metrics.jsonl. Bytes are frame bytes, up and down by client; ``downlink`` is all it was sent.

    Of a round that was broken off and gone on with, ``seconds`` and ``downlink`` are those since.
    """

    round: int
    seconds: float
    accuracy: float
    loss: float
    train_loss: float
    uplink: dict[str, int]
    downlink: dict[str, int]
    excused: dict[str, str]
    rejections: dict[str, int]


class RunFolder:
    """One run's folder.

    Parameters
    ----------
    root
        Made if need be; must not hold another run.
    config
        Written at once.
    finished
        The finished rounds of the run that the folder holds, when that goes on: what else it tells is forgotten. None
        for a new run.

    Attributes
    ----------
    run
        The run's id.

    Raises
    ------
    StateError
        When the folder holds a run already or cannot be written.
    """

    def __init__(self, root: Path, config: RunConfig, *, finished: Sequence[RoundMetrics] | None = None) -> None:
        self.root, self.run = root, config.run
        if finished is None:
            check_no_run(root)
        try:
            (root / "checkpoints").mkdir(parents=True, exist_ok=True)
            (root / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)) + b"\n")
            lines = [msgspec.json.encode(metrics) + b"\n" for metrics in finished or ()]
            write_atomically(root / "metrics.jsonl", b"".join(lines))
            self._metrics = (root / "metrics.jsonl").open("ab")
        except OSError as error:
            raise StateError(f"The run folder '{root}' cannot be written: {error.strerror}.") from error

    def keep_update(self, round: int, frame: Frame, content: bytes) -> Report:
        """Keep an accepted update, whole or not at all, even if this process is killed right then.

        A power cut may take it: waiting for the disk, update by update, would take longer than a round.
        """
        header = frame.header
        path = self.update(round, header.client)
        write_atomically(path, content, flush=False)
        return Report(path, header.samples, header.loss, len(content))

    def update(self, round: int, client: str) -> Path:
        """Where :meth:`keep_update` puts a client's update."""
        return self.root / "updates" / f"{round:05d}" / f"{client}.frame"

    def holds(self, path: Path, digest: str) -> bool:
        """Whether ``path`` has the bytes of that SHA-256."""
        return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest

    def keep_model(self, round: int, weights: Weights, learned: State) -> None:
        """Put the model after ``round`` on disk, and what the server had learned by then."""
        write_atomically(self._checkpoint(round, _LEARNED), packed(learned))
        write_atomically(self._checkpoint(round, _WEIGHTS), save(dict(weights)))

    def model(self, round: int) -> tuple[dict[str, NDArray[np.float32]], State]:
        """The model after a finished ``round``, and what the server had learned; StateError when they are damaged."""
        path = self._checkpoint(round, _WEIGHTS)
        try:
            learned = unpacked(self._checkpoint(round, _LEARNED).read_bytes())
            return load(path.read_bytes()), learned
        except (OSError, ValueError, EOFError, BadZipFile, SafetensorError) as error:
            raise StateError(
                f"The model of round {round}, '{path}', is damaged ({error}); the run cannot be continued."
            ) from error

    def close_round(self, metrics: RoundMetrics) -> None:
        """Keep a finished round's metrics; its updates, and all but the last models, are done with."""
        for suffix in (_WEIGHTS, _LEARNED):
            for old in sorted((self.root / "checkpoints").glob(f"*{suffix}"))[:-_CHECKPOINTS]:
                old.unlink()
        self._metrics.write(msgspec.json.encode(metrics) + b"\n")
        self._metrics.flush()
        shutil.rmtree(self.root / "updates", ignore_errors=True)

    def _checkpoint(self, round: int, suffix: str) -> Path:
        return self.root / "checkpoints" / f"{round:05d}{suffix}"

    def finish(self, weights: Weights) -> Path:
        """Write the final weights and say where."""
        path = self.root / "weights.safetensors"
        write_atomically(path, save(dict(weights)))
        self._metrics.close()
        return path


def check_no_run(root: Path) -> None:
    """Raise StateError when ``root`` holds a run already."""
    if (root / "config.json").exists():
        raise StateError(f"'{root}' already holds a run; give another folder with --output.")


def run_of(root: Path) -> str:
    """The id of the run in ``root``; raises StateError when it holds none."""
    try:
        return msgspec.json.decode((root / "config.json").read_bytes(), type=RunConfig).run
    except (OSError, msgspec.DecodeError) as error:
        raise StateError(
            f"'{root}' holds no run to go on with: its config.json cannot be read ({error})."
        ) from error
