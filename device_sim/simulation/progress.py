"""A simulation's progress in a terminal: one bar over every client of every round."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from broker.live import PlainView
from broker.observer import Observer
from edge_fl.metrics.text import loss_text, scores_text
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["view"]


@contextmanager
def view(console: Console) -> Iterator[Observer]:
    """A bar while the context lasts where ``console`` is a terminal; else a line a round."""
    if not console.is_terminal:
        yield PlainView(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        yield _Bar(bar)


class _Bar(Observer):
    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("starting", total=None)
        self._rounds = self._each = 0
        self._scores = ""

    def started(self, config: RunConfig, dense_bytes: int, finished: Sequence[RoundMetrics] = ()) -> None:
        """Learn how much there is to do."""
        del dense_bytes, finished
        self._rounds, self._each = config.rounds, config.clients_per_round
        self._bar.update(self._task, total=self._rounds * self._each, description=config.method)

    def begins_with(self, scores: Mapping[str, float], loss: float) -> None:
        """Say what training begins with."""
        found = scores_text(scores) or loss_text(loss, None)
        self._bar.update(self._task, description=f"before round 1, {found}")

    def round_started(self, number: int, selected: list[str]) -> None:
        """Set the bar, also to where an interrupted run goes on."""
        del selected
        self._bar.update(self._task, completed=(number - 1) * self._each)

    def device(self, client: str, status: str) -> None:
        """Count a client that is done."""
        del client
        if status == "accepted":
            self._bar.advance(self._task)

    def round_closed(self, metrics: RoundMetrics) -> None:
        """Say how far the model is."""
        found = scores_text(metrics.scores) or loss_text(metrics.loss, metrics.train_loss)
        self._scores = f", {found}" if found else ""
        done = f"round {metrics.round} of {self._rounds}{self._scores}"
        self._bar.update(self._task, completed=metrics.round * self._each, description=done)
