"""FedBIAD's readings: what an iteration is, and which losses judge a fresh pattern; accuracy, and what is redrawn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean
from unittest.mock import patch

from msgspec.structs import replace

from benchmarks.figures import accuracy_figures, by_dataset, difference, finals, notes_of
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill
from benchmarks.paper_tables import setting_text
from benchmarks.runs import Run, bundle_of, make_run
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Result, Row
from edge_fl.methods.base import Job, LocalHalf
from edge_fl.methods.fedbiad import FedBiad

__all__ = ["READINGS", "Redraws", "bench_readings", "redraws_of"]

READINGS = {
    "steps": "fedbiad tau_in=steps",
    "passes": "fedbiad",
    "steps, own losses": "fedbiad tau_in=steps own_losses=true",
    "passes, own losses": "fedbiad own_losses=true",
    "no first stage": "fedbiad stage_boundary=0",
}
"""What each is run as."""

_DENSE = "fedavg"
_TRACED = 2  # rounds in which redraws are counted


@dataclass
class Redraws:
    """What clients did with their patterns in some rounds of stage one."""

    visits: int = 0
    redraws: int = 0
    misjudged: int = 0
    """Redraws for losses of which some were an earlier pattern's."""
    last: list[int] = field(default_factory=list)
    """How many steps each upload's pattern was trained for."""


def bench_readings(choice: Choice, how: Filling) -> Result:
    """Run FedBIAD in every reading, and FedAvg.

    Raises as :func:`benchmarks.grid.fill` does, and ConfigError when other methods are asked for.
    """
    if choice.methods is not None:
        raise ConfigError("Readings are of fedbiad alone: leave --method out.")
    found, missing = fill([made for dataset in choice.datasets for made in _entries(choice, dataset)], how)
    groups = by_dataset(found)
    return Result(
        title="FedBIAD's readings",
        command=choice.command("readings"),
        about="An iteration of eq. (8) is a mini-batch (`steps`), or a pass over a client's data (`passes`); tau is 3 "
        "of them. After a redraw eq. (8) compares a fresh pattern's losses with those of the pattern before; with "
        "`own losses` a pattern is judged once it has enough of them. Redraws are those of a client and round, counted "
        f"in the first {_TRACED} rounds, which are run once more for that. Misjudged is the share of redraws for "
        "losses of which some were another pattern's. Trained is how many local steps an upload's pattern was trained "
        f"for. The last column is the difference to FedAvg, over the seeds that both have. {setting_text(choice)}",
        rows=[_row(filled, groups.get(filled.run.dataset, []), how) for filled in found],
        notes=notes_of(found, missing),
    )


def redraws_of(run: Run, how: Filling) -> Redraws:
    """What clients redraw in the first rounds of ``run``; raises as :func:`benchmarks.runs.make_run` does."""
    first = replace(run, rounds=_TRACED, evaluate_every=_TRACED, device="cpu")
    with _counted() as counted:
        make_run(first, bundle_of(run, how.cache, how.report), how.report)
    return counted


@contextmanager
def _counted() -> Iterator[Redraws]:
    counted, local = Redraws(), FedBiad.local

    def watched(method: FedBiad, job: Job) -> LocalHalf:
        half = local(method, job)
        _watch(half, counted, 2 * method.parameters.tau_steps(job))
        return half

    with patch.object(FedBiad, "local", watched):
        yield counted


def _watch(half: LocalHalf, counted: Redraws, window: int) -> None:
    """Have ``half`` tell of its redraws; eq. (8) reads the losses of ``window`` steps."""
    after_step, since = half.after_step, 0
    counted.visits += 1
    counted.last.append(0)
    place = len(counted.last) - 1

    def watched(number: int, loss: float) -> None:
        nonlocal since
        before = half.step.pattern
        after_step(number, loss)
        counted.last[place] = number + 1 - since
        if half.step.pattern is not before:
            counted.redraws += 1
            counted.misjudged += since > 0 and number + 1 - since < window
            since = number + 1
            counted.last[place] = 0

    half.after_step = watched  # type: ignore[method-assign]


def _entries(choice: Choice, dataset: str) -> list[Entry]:
    dense = entry(choice, dataset, _DENSE, {"reading": "FedAvg"})
    return [dense, *(entry(choice, dataset, method, {"reading": name}) for name, method in READINGS.items())]


def _row(filled: Filled, group: Sequence[Filled], how: Filling) -> Row:
    dense = next((other for other in group if other.run.recipe == _DENSE), None)
    apart = difference(filled, dense) if dense is not None and finals(filled) else None
    row: dict[str, str | float] = {
        "data set": filled.run.dataset,
        **filled.entry.columns,
        **accuracy_figures(filled),
        **dict.fromkeys(("redraws", "misjudged (%)", "trained (steps)"), ""),
        "- FedAvg's": "" if apart is None else apart,
    }
    staged = filled.run.recipe != _DENSE and filled.run.in_effect()["stage_boundary"] > 0
    if not staged or how.minutes == 0:
        return row
    counted = redraws_of(filled.run, how)
    return row | {
        "redraws": counted.redraws / counted.visits,
        "misjudged (%)": 100 * counted.misjudged / max(counted.redraws, 1),
        "trained (steps)": mean(counted.last),
    }
