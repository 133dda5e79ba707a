"""What a run leaves on disk.

::

    config.json          the RunConfig
    settings.json        of a fleet: what else the run was begun with, for a record that has to be made anew
    metrics.jsonl        one line a round
    presence.json        of a fleet: which devices are connected, and when each was heard of last
    updates/             the frames of the round under way, or of a buffered run, in a file
    checkpoints/         the model after each of the last rounds, and what the server had learned besides, unless they
                         are kept elsewhere
    initial.safetensors  with ``initial_weights``: the model that the run started from
    best-NNNNN.safetensors  with ``keep_best``: the model after the best round so far
    weights.safetensors  the final model
"""

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.numpy import load, save

from broker.checkpoints import Checkpoints
from broker.rounds import Report
from broker.update_file import UpdateFile
from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import StateError
from edge_fl.core.selection import Weights
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["FINAL", "SETTINGS", "RunFolder", "check_no_run", "new_run_id", "run_of"]

SETTINGS = "settings.json"
FINAL = "weights.safetensors"


def new_run_id() -> str:
    """A name for a run that sorts by time and that no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


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
    models
        Where the models after the last rounds go, in a folder named as the run: a folder or a URL (None: here).

    Attributes
    ----------
    run
        The run's id.
    checkpoints
        The models after the last rounds.

    Raises
    ------
    StateError
        When the folder holds a run already or cannot be written.
    """

    def __init__(
        self,
        root: Path,
        config: RunConfig,
        *,
        finished: Sequence[RoundMetrics] | None = None,
        models: str | None = None,
    ) -> None:
        self.root, self.run = root, config.run
        self._lasting = config.buffer > 0  # whether an update may come in over several rounds
        if finished is None:
            check_no_run(root)
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)) + b"\n")
            lines = [msgspec.json.encode(metrics) + b"\n" for metrics in finished or ()]
            write_atomically(root / "metrics.jsonl", b"".join(lines))
            self._metrics = (root / "metrics.jsonl").open("ab")
            self._updates: UpdateFile | None = None
            self._room = 0  # bytes of an update at the most
        except OSError as error:
            raise StateError(f"The run folder '{root}' cannot be written: {error.strerror}.") from error
        self.checkpoints = Checkpoints(f"{models}/{config.run}" if models else str(root / "checkpoints"))

    def open_updates(self, round: int, room: int) -> UpdateFile:
        """Take updates of ``round``, of ``room`` bytes at most, until it is closed; of a buffered run until it ends.

        What is written there is kept even if this process is killed right then, and counts once it is in the record. A
        power cut may take it: waiting for the disk, update by update, would take longer than a round.
        """
        if self._updates is None:
            self._updates = UpdateFile(self.updates(round), room)
        self._room = room
        return self._updates

    def updates(self, round: int) -> Path:
        """Where a round's updates are."""
        return self.root / "updates" / ("buffer.frames" if self._lasting else f"{round:05d}.frames")

    def open_masked(self, round: int) -> UpdateFile:
        """Room for masked updates on their way; what comes of them is nowhere else but in a sum."""
        path = self.root / "updates" / f"{round:05d}.masked"
        path.unlink(missing_ok=True)
        return UpdateFile(path, self._room)

    def aggregation(self, round: int) -> Path:
        """Where the record of a round's secure aggregation is, gone with the updates."""
        return self.root / "updates" / f"{round:05d}.aggregation"

    def holds(self, report: Report, digest: str) -> bool:
        """Whether that update is still there, with the SHA-256 that it was accepted by."""
        held = report.path is not None and report.path.exists()
        return held and hashlib.sha256(report.content()).hexdigest() == digest

    def close_round(self, metrics: RoundMetrics) -> None:
        """Keep a finished round's metrics, on disk; its updates, and all but the last models, are done with."""
        self.checkpoints.prune(metrics.round)
        self._metrics.write(msgspec.json.encode(metrics) + b"\n")
        self._metrics.flush()
        os.fsync(self._metrics.fileno())  # of these lines a damaged record is made anew
        if not self._lasting:
            self._forget_updates()

    def _forget_updates(self) -> None:
        if self._updates is not None:
            self._updates.close()
            self._updates = None
        shutil.rmtree(self.root / "updates", ignore_errors=True)

    def close(self) -> None:
        """Leave a run that is not finished: its updates stay, so that it can be resumed."""
        if self._updates is not None:
            self._updates.close()
        self._metrics.close()

    def keep_best(self, round: int, weights: Weights) -> None:
        """Keep the outcome after ``round``; what was kept before stays until the round is closed."""
        write_atomically(self._best(round), save(dict(weights)))

    def best(self, round: int) -> Weights:
        """What was kept of that round; StateError when it is gone."""
        try:
            return load(self._best(round).read_bytes())
        except (OSError, SafetensorError) as error:
            raise StateError(
                f"The best model of the run, '{self._best(round)}', cannot be read: {error}."
            ) from error

    def forget_best(self, besides: int) -> None:
        """Of the rounds that were the best, all but ``besides`` are done with."""
        for path in self.root.glob("best-*.safetensors"):
            if path != self._best(besides):
                path.unlink()

    def _best(self, round: int) -> Path:
        return self.root / f"best-{round:05d}.safetensors"

    def finish(self, weights: Weights) -> Path:
        """Write the final weights and say where."""
        path = self.root / FINAL
        write_atomically(path, save(dict(weights)))
        self._forget_updates()
        self._metrics.close()
        return path


def check_no_run(root: Path) -> None:
    """Raise StateError when ``root`` holds a run already."""
    if (root / "config.json").exists():
        raise StateError(
            f"'{root}' already holds a run: continue the run with --resume, give another folder with --output, or "
            "delete this one."
        )


def run_of(root: Path) -> str:
    """The id of the run in ``root``; raises StateError when it holds none."""
    try:
        return msgspec.json.decode((root / "config.json").read_bytes(), type=RunConfig).run
    except (OSError, *UNREADABLE) as error:
        raise StateError(
            f"'{root}' holds no run to go on with: its config.json cannot be read ({error})."
        ) from error
