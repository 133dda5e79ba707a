"""What a run leaves on disk.

::

    config.json          the RunConfig
    metrics.jsonl        one line a round
    updates/             the frames of the round under way
    checkpoints/         the model after each of the last rounds
    weights.safetensors  the final model
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
from safetensors.numpy import save

from broker.config import RunConfig
from broker.rounds import Report
from edge_fl.atomic import write_atomically
from edge_fl.errors import StateError
from edge_fl.selection import Weights
from edge_fl.wire.frame import Frame

__all__ = ["RoundMetrics", "RunFolder", "check_no_run"]

_CHECKPOINTS = 3


class RoundMetrics(msgspec.Struct, frozen=True):
    """One line of metrics.jsonl. Bytes are frame bytes, up and down by client; ``downlink`` is all it was sent."""

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
        """Put an accepted update on disk, whole or not at all."""
        header = frame.header
        path = self.root / "updates" / f"{round:05d}" / f"{header.client}.frame"
        write_atomically(path, content)
        return Report(path, header.samples, header.loss, len(content))

    def close_round(self, metrics: RoundMetrics, weights: Weights) -> None:
        """Keep the new model and its metrics; the round's updates are done with."""
        name = self.root / "checkpoints" / f"{metrics.round:05d}.safetensors"
        write_atomically(name, save(dict(weights)))
        for old in sorted(name.parent.glob("*.safetensors"))[:-_CHECKPOINTS]:
            old.unlink()
        self._metrics.write(msgspec.json.encode(metrics) + b"\n")
        self._metrics.flush()
        shutil.rmtree(self.root / "updates", ignore_errors=True)

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
