"""A round's exact sums, which workers make of the updates that they took in."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from broker.held_update import HeldUpdate, SumsOfWorkers, held_update
from broker.model import GlobalModel
from broker.round_sum import RoundSum
from broker.rounds import Report, Round
from broker.workers.jobs import Kept
from broker.workers.pool import Workers
from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.exact_sums import Counted, Held, entries_of, reach_of
from edge_fl.core.layout import Layout
from edge_fl.recipes.recipe import Recipe
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.sum_frame import SumHeader

__all__ = ["WorkerSums", "total_of"]


def total_of(
    workers: Workers,
    model: GlobalModel,
    current: Round,
    took: Mapping[str, float],
    *,
    recipe: Recipe,
    left_out: frozenset[str],
) -> RoundSum:
    """What a round's updates come to, besides those ``left_out``, in sums that workers are to make."""
    layout = model.layout
    reports = [(client, report) for client, report in sorted(current.reports.items()) if client not in left_out]
    kept = [Kept(_path(report), report.offset, report.size) for _, report in reports]
    sums = WorkerSums(layout, recipe, workers=workers, run=model.run, round=current.number, kept=kept)
    total = model.round_sum(sums)
    for number, (client, report) in enumerate(reports):
        held = report.held or _read(report, layout, recipe)
        frame = held.without_values(layout, recipe.decoders)
        place = Held(held.size, held.reach, 0, number)
        total.add_held(current.parts[client].task.tier, frame, place, took.get(client))
    return total


def _path(report: Report) -> Path:
    assert report.path is not None  # a fleet that outlives this process keeps what it sends
    return report.path


def _read(report: Report, layout: Layout, recipe: Recipe) -> HeldUpdate:
    """What a worker told, before this process began."""
    frame = decode_frame(report.content(), layout, recipe.shared(), recipe.decoders)
    return held_update(
        frame, report.size, layout=layout, reach=reach_of(entries_of(layout, recipe.rule, frame.values))
    )


class WorkerSums(SumsOfWorkers):
    """Sums of updates that lie on disk.

    Parameters
    ----------
    layout, run, round
        As :class:`broker.held_update.SumsOfWorkers` has them.
    recipe
        Has their rule, and what a compressor gave out with the model.
    workers
        Add up.
    kept
        Where each update is, by the number that it is held by.
    """

    def __init__(
        self, layout: Layout, recipe: Recipe, *, workers: Workers, run: str, round: int, kept: Sequence[Kept]
    ) -> None:
        super().__init__(layout, recipe.rule, run=run, round=round)
        self._workers, self._kept, self._shared = workers, kept, recipe.shared()
        self._numbers: list[int] = []

    def add_held(self, held: Held, samples: int, discount: float = 1, *, clip: Clip = WHOLE) -> None:
        """Count an update, as :meth:`edge_fl.aggregation.exact_sums.ExactAccumulator.add` would."""
        self._take(held.reach, samples, discount, clip)
        self._numbers.append(held.number)

    def _partial_sums(
        self, header: SumHeader, counted: Sequence[Counted]
    ) -> Iterator[tuple[Sequence[Counted], bytes]]:
        updates = [(self._kept[number], each) for number, each in zip(self._numbers, counted, strict=True)]
        for share, frame in self._workers.add_up(header, self._shared, updates):
            yield [each for _, each in share], frame
