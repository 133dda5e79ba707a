"""A run's folder, for people: what it was set to, what was recorded of it, and its weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import RunError, StateError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["Run", "place_of"]


class Run:
    """A finished run, or one under way, as its folder tells it.

    Attributes
    ----------
    folder
        Where it is.
    config
        What it was set to.
    metrics
        A record a finished round.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.config, self.metrics = _read(self.folder)

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Open a run's folder; raises StateError when it holds none, or a damaged one."""
        return cls(folder)

    def __repr__(self) -> str:
        """The method, how far it came, and its scores."""
        scores = ", ".join(f"{name}={value:.4g}" for name, value in self.scores.items())
        return f"Run({self.config.method}, {len(self.metrics)} of {self.config.rounds} rounds, {scores or 'no scores'})"

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores on held-out data of the model that the weights are (:attr:`kept`), else the last, by name.

        Empty where there was no test data.
        """
        kept = self.kept
        if kept is not None and kept.scores:
            return kept.scores
        return next((metrics.scores for metrics in reversed(self.metrics) if metrics.scores), {})

    @property
    def kept(self) -> RoundMetrics | None:
        """The finished round whose model the weights are: the best with ``keep_best``, else the last; None of none."""
        found = (int(path.stem.removeprefix("best-")) for path in self.folder.glob("best-*.safetensors"))
        finished = [number for number in found if number <= len(self.metrics)]
        return self.metrics[max(finished, default=len(self.metrics)) - 1] if self.metrics else None

    @property
    def best(self) -> RoundMetrics | None:
        """The round that is :attr:`kept` where that is not the last; else None."""
        kept = self.kept
        return None if kept is None or kept.round == self.metrics[-1].round else kept

    @property
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The final model, full tensors by name and in the order of names (needs safetensors).

        Raises
        ------
        RunError
            When the run has not ended, or its weights are damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = self.folder / "weights.safetensors"
        try:
            return dict(sorted(load(path.read_bytes()).items()))
        except OSError as error:
            raise RunError(
                f"The run at '{self.folder}' has no final weights: '{path}' cannot be read; "
                "let it end, or go on with it by --resume."
            ) from error
        except SafetensorError as error:
            raise RunError(f"The final weights '{path}' are damaged: {error}.") from error

    def records(self) -> list[dict[str, Any]]:
        """A flat record a round: round, scores by name, losses, seconds, and bytes up and down in all."""
        return [
            {
                "round": metrics.round,
                **metrics.scores,
                "loss": metrics.loss,
                "train_loss": metrics.train_loss,
                **({} if metrics.privacy is None else {"epsilon": metrics.privacy.epsilon}),
                "seconds": metrics.seconds,
                "updates": len(metrics.uplink),
                "uplink_bytes": sum(metrics.uplink.values()),
                "downlink_bytes": sum(metrics.downlink.values()),
            }
            for metrics in self.metrics
        ]

    def frame(self) -> Any:
        """The records as a pandas DataFrame, by round (needs pandas)."""
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]

        return pd.DataFrame(self.records()).set_index("round")

    def plot(self, path: str | Path | None = None, *, dense: int | None = None) -> Path:
        """Draw scores, losses, bytes and time; returns where (``plot.png`` in the folder unless told).

        ``dense`` is the size in bytes of a frame that drops nothing, a line beside those of the updates; None for about
        that of the weights' file, if there is one.
        """
        from edge_fl.runs.plot import draw_run

        target = self.folder / "plot.png" if path is None else Path(path)
        weights = self.folder / "weights.safetensors"
        if dense is None and weights.exists():
            dense = weights.stat().st_size
        draw_run(self.metrics, target, title=self._title, dense=dense)
        return target

    @property
    def _title(self) -> str:
        kept, rounds = self.kept, f"{len(self.metrics)} rounds"
        if kept is None:
            return f"{self.config.method}: {rounds}"
        after = rounds if self.best is None else f"round {kept.round}, the best of {rounds}"
        return f"{self.config.method}: {kept.found} after {after}"

    def compare(self, *others: "Run | str | Path", path: str | Path = "compare.html") -> Path:
        """Draw and tabulate this run beside ``others``, runs or folders; returns the page's place (HTML, or PNG)."""
        from edge_fl.runs.compare import compare

        runs = [other if isinstance(other, Run) else Run.open(other) for other in others]
        return compare([self, *runs], Path(path))


def _read(folder: Path) -> tuple[RunConfig, tuple[RoundMetrics, ...]]:
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=RunConfig)
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
        return config, tuple(msgspec.json.decode(line, type=RoundMetrics) for line in lines)
    except OSError as error:
        raise StateError(f"There is no run at '{folder}': '{error.filename}' cannot be read.") from error
    except UNREADABLE as error:
        raise StateError(
            f"The run at '{folder}' is damaged, or was made by another version of edge-fl: {error}."
        ) from error


def place_of(given: Run | str | Path | None) -> str | None:
    """Where a run or a file is, wherever this process goes from here; None of none."""
    return None if given is None else str(Path(given.folder if isinstance(given, Run) else given).resolve())
