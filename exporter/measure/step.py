"""A training step of every model in every runtime, full and half width, against torch eager in the same run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from edge_fl.core.bundle import Bundle
from edge_fl.core.dropout import masks_of_nothing_dropped
from edge_fl.core.errors import EdgeFLError, UnsupportedModelError
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from edge_fl.measure.timing import turns
from edge_fl.runtimes.base import open_runtime
from exporter.measure.cases import BATCH, WIDTHS, Case, find_case
from exporter.measure.eager import eager_step, sized
from exporter.measure.exported import exported
from exporter.measure.goals import reached
from exporter.measure.memory import Work, peak_memory

__all__ = ["StepSetting", "bench_step"]

_BARS = Bars("Time of a step on half the units, as a share of a full step", ("model", "runtime"), ("half / full",))

_EAGER = "torch eager"
_LR = 1e-3
_FULL, _HALF = WIDTHS


@dataclass(frozen=True)
class StepSetting:
    """What is timed, and how.

    Parameters
    ----------
    models, runtimes
        By name.
    threads
        CPU threads of a step.
    repeats
        Turns each alternative takes.
    cache
        Where bundles are kept.
    """

    models: tuple[str, ...]
    runtimes: tuple[str, ...]
    threads: int
    repeats: int
    cache: Path

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        chosen = [f"--model {name}" for name in self.models] + [f"--runtime {name}" for name in self.runtimes]
        return f"edge-fl bench step {' '.join(chosen)} --threads {self.threads} --repeats {self.repeats}"


def bench_step(setting: StepSetting, report: Callable[[str], None]) -> Result:
    """Time plain SGD steps; a runtime that cannot take a model is noted with its refusal.

    Parameters
    ----------
    report
        Told of what is being done.

    Raises
    ------
    ModelError
        When a model is unknown.
    UnsupportedModelError
        When no runtime takes any of the models.
    """
    torch.set_num_threads(setting.threads)
    rows: list[Row] = []
    notes: list[str] = []
    for name in setting.models:
        case = find_case(name)
        bundles, refusals = _bundles(case, setting, report)
        notes += refusals
        if bundles:
            rows += _rows(case, bundles, setting, report)
    if not rows:
        raise UnsupportedModelError(f"No runtime takes any of these models: {notes[0]}")
    return Result(
        title="Training step",
        command=setting.command,
        about=f"One plain SGD step on a batch of {BATCH}, every model at its full size; half width is compact "
        "execution of half the units of each block. Torch eager is an ordinary nn.Module of that width with autograd "
        "and torch.optim.SGD. A ratio is the median over the turns of one run, in each of which every alternative "
        "takes one step; only ratios mean anything on a machine with other work. Memory is the peak of resident memory "
        "above the loaded libraries while weights are made, the program is loaded and three steps run, in a process "
        "of its own. Goals are the project's own.",
        rows=rows,
        notes=notes,
        bars=_BARS,
    )


def _bundles(
    case: Case, setting: StepSetting, report: Callable[[str], None]
) -> tuple[dict[str, Bundle], list[str]]:
    bundles, refusals = {}, []
    for runtime in setting.runtimes:
        try:
            bundles[runtime] = exported(case, (runtime,), setting.cache, report)
        except EdgeFLError as error:
            refusals.append(f"{case.name} on {runtime}: {error}")
    return bundles, refusals


@dataclass(frozen=True)
class _Timed:
    """A model in the runtimes that take it, and the seconds of each turn by runtime and width."""

    case: Case
    bundles: Mapping[str, Bundle]
    times: Mapping[tuple[str, int], Sequence[float]]
    threads: int

    def row(self, name: str) -> Row:
        """What the table says of torch eager, or of a runtime."""
        bundle = self.bundles.get(name)
        full, half = (self.times[name, width] for width in WIDTHS)
        ratios = {
            "full / eager": _ratio(full, self.times[_EAGER, _FULL]),
            "half / eager's half": _ratio(half, self.times[_EAGER, _HALF]),
            "half / full": _ratio(half, full),
        }
        return {
            "model": self.case.name,
            "runtime": name,
            "full (ms)": 1e3 * median(full),
            **ratios,
            "memory, full (MB)": self._memory(name, _FULL),
            "memory, half (MB)": self._memory(name, _HALF),
            "program, full (kB)": _size(bundle, name, _FULL) if bundle else "",
            "program, half (kB)": _size(bundle, name, _HALF) if bundle else "",
            "goals": reached(self.case.name, name, ratios),
        }

    def _memory(self, name: str, width: int) -> float:
        bundle = self.bundles.get(name, next(iter(self.bundles.values())))
        runtime = None if name == _EAGER else name
        work = Work(bundle.root, self.case.name, runtime, width, self.case.batch(), self.threads)
        return peak_memory(work) / 1e6


def _rows(
    case: Case, bundles: Mapping[str, Bundle], setting: StepSetting, report: Callable[[str], None]
) -> Iterator[Row]:
    report(f"{case.name}: timing")
    steps = {(_EAGER, width): _eager(case, bundles, width) for width in WIDTHS}
    for runtime, bundle in bundles.items():
        for width in WIDTHS:
            steps[runtime, width] = _step(case, bundle, runtime, width, setting.threads)
    timed = _Timed(case, bundles, turns(steps, repeats=setting.repeats), setting.threads)
    for name in (_EAGER, *bundles):
        report(f"{case.name}: memory of {name}")
        yield timed.row(name)


def _ratio(times: Sequence[float], to: Sequence[float]) -> float:
    return median(a / b for a, b in zip(times, to, strict=True))


def _size(bundle: Bundle, runtime: str, width: int) -> float:
    counts = _pattern(bundle, width).counts
    program = bundle.manifest.step_program(runtime, "plain", counts, BATCH)
    assert program is not None
    return bundle.manifest.files[program.file].size / 1e3


def _eager(case: Case, bundles: Mapping[str, Bundle], width: int) -> Callable[[], object]:
    kept = _kept(next(iter(bundles.values())), width)
    return eager_step(sized(case.build(), kept), case.batch(), lr=_LR)


def _step(case: Case, bundle: Bundle, runtime: str, width: int, threads: int) -> Callable[[], object]:
    kept, batch = _kept(bundle, width), case.batch()
    pattern = _pattern(bundle, width)
    program = open_runtime(runtime, bundle, threads=threads).train_step(pattern, BATCH)
    masks = masks_of_nothing_dropped(bundle.manifest.dropout, pattern, batch=BATCH)
    return lambda: program(kept, batch, lr=_LR, extra=masks)


def _kept(bundle: Bundle, width: int) -> Weights:
    return Selection.of(_pattern(bundle, width), "units").gather(bundle.weights())


def _pattern(bundle: Bundle, width: int) -> Pattern:
    return Pattern.seeded(bundle.layout, 1000 - width, key=1)
