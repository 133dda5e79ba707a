"""Fine-tuning a pretrained model over devices: accuracy against bytes and CPU time, for what of it is trained."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec

from benchmarks.figures import deviation
from benchmarks.plots import panels
from benchmarks.pretrained import TASKS, PretrainedTask, pretrained
from benchmarks.records import held, read_records, write_records
from benchmarks.runs import Watch
from device_sim.simulation.api import begin
from edge_fl.core.bundle import SEAL, Bundle
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.measure.table import Picture, Result, Row
from edge_fl.recipes.named import recipe_and_parameters
from edge_fl.recipes.recipe import open_recipe
from exporter.export import export_bundle
from exporter.fine_tuning import train_only
from exporter.measure.exported import exporter_digest

__all__ = ["WAYS", "FineTuningChoice", "Keeping", "Tuned", "Way", "bench_fine_tuning"]

_TIERS = (1.0, 0.5, 0.25, 0.125)
_FULL_RANK = 16
_LOCAL_STEPS, _BATCH = 10, 20
_STEP_SIZES = (1.0, 1 / 3)  # times the task's own for the part that is trained
_SEARCH_SEED = 100

_SHOWN_BELOW = 3.0  # points below the start that a plot has
_TICKS = (10, 30, 100, 300, 1000)  # kB

_Part = Literal["all", "head", "adapters"]


@dataclass(frozen=True)
class Way:
    """What of the model is trained, and by which recipe; ``tiers`` share the ranks of 16 as the method has it."""

    part: _Part
    rank: int = 0
    recipe: str = "fedavg"
    parameters: tuple[tuple[str, Any], ...] = ()
    tiers: int = 1

    @property
    def trained(self) -> str:
        """What the table calls that part."""
        return f"LoRA, r = {self.rank}" if self.part == "adapters" else self.part

    @property
    def method(self) -> str:
        """What the table calls the recipe: with its rule, where that is not the recipe's own."""
        rule = dict(self.parameters).get("rule")
        return self.recipe if rule is None else f"{self.recipe}, rule {rule}"


_BY_TIER = (("widths", _TIERS),)

WAYS: tuple[Way, ...] = (
    Way("all"),
    Way("head"),
    *(Way("adapters", rank) for rank in (2, 4, 8, _FULL_RANK)),
    Way("adapters", _FULL_RANK, "fedbiad", (("dropout", 0.5),)),
    Way("adapters", _FULL_RANK, "fjord", _BY_TIER, len(_TIERS)),
    Way("adapters", _FULL_RANK, "hetlora", (*_BY_TIER, ("rule", "zeros")), len(_TIERS)),
    Way("adapters", _FULL_RANK, "hetlora", _BY_TIER, len(_TIERS)),
    Way("adapters", _FULL_RANK, "flexlora", _BY_TIER, len(_TIERS)),
    Way("adapters", _FULL_RANK, "fedpaq"),
    Way("adapters", _FULL_RANK, "dgc", (("dgc.ratio", 0.05),)),
    Way("adapters", _FULL_RANK, "fedbiad+fedpaq", (("dropout", 0.5),)),
)
"""The lines of a task, in the order of the table."""


@dataclass(frozen=True)
class FineTuningChoice:
    """Which tasks and seeds, and for how many ``rounds`` of ``clients`` devices each."""

    tasks: Sequence[str]
    seeds: Sequence[int]
    rounds: int
    clients: int

    def __post_init__(self) -> None:
        if _SEARCH_SEED in self.seeds:
            raise ConfigError(f"Seed {_SEARCH_SEED} finds the step sizes: give others.")
        if unknown := [name for name in self.tasks if name not in TASKS]:
            raise ConfigError(f"There is no task '{unknown[0]}'; there are {', '.join(TASKS)}.")

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        named = [*(f"--task {name}" for name in self.tasks), *(f"--seed {seed}" for seed in self.seeds)]
        return f"edge-fl bench fine-tuning {' '.join(named)} --rounds {self.rounds} --clients {self.clients}"


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one run found: accuracies before and after (fractions), the mean bytes of an update, the CPU seconds of a
    client's step, and how many numbers are trained. ``key`` says of which run. ``failed`` is the sentence of a run that
    diverged.
    """

    key: str
    trained: int
    before: float = 0.0
    after: float = 0.0
    uplink: float = 0.0
    step: float = 0.0
    failed: str = ""


@dataclass(frozen=True)
class Keeping:
    """The JSON file of ``results``, the folder of pretrained weights and bundles, and who is told of what is done."""

    results: Path
    cache: Path
    report: Callable[[str], None]


@dataclass(frozen=True)
class _Case:
    """One run."""

    task: PretrainedTask
    way: Way
    lr: float
    seed: int
    rounds: int
    clients: int

    @property
    def key(self) -> str:
        """The same for two runs that are one, however their parameters were given; defaults count as they are now."""
        name, parameters, _ = recipe_and_parameters(self.way.recipe, dict(self.way.parameters))
        case = replace(self, way=replace(self.way, parameters=()))
        return _digest(asdict(case), open_recipe(name, parameters).parameters, _LOCAL_STEPS, _BATCH)

    @property
    def label(self) -> str:
        """What is told of it."""
        return f"{self.task.name}, {self.way.trained}, {self.way.method}, lr {self.lr:.2g}, seed {self.seed}"


@dataclass(frozen=True)
class _Line:
    """A row of the table: its runs, each of another seed, at the step size ``lr``."""

    lr: float
    runs: Sequence[Tuned]


def bench_fine_tuning(choice: FineTuningChoice, keeping: Keeping) -> Result:
    """Find each line's step size by runs of another seed, make the runs that the results lack, and tabulate all.

    Raises
    ------
    EdgeFLError
        As the export and the simulation do, and DataError where the results are damaged or data cannot be had.
    """

    def tuned(name: str, way: Way, lr: float, seed: int) -> Tuned:
        return _tuned(_Case(TASKS[name], way, lr, seed, choice.rounds, choice.clients), keeping)

    lines = [(name, way) for name in choice.tasks for way in WAYS]
    best = {line: max(_step_sizes(*line), key=lambda lr: tuned(*line, lr, _SEARCH_SEED).after) for line in lines}
    runs = {(line, seed): tuned(*line, best[line], seed) for seed in choice.seeds for line in lines}
    return _result(
        choice, {line: _Line(best[line], [runs[line, seed] for seed in choice.seeds]) for line in lines}
    )


def _step_sizes(name: str, way: Way) -> list[float]:
    own = TASKS[name].lr[way.part]
    return [own * factor for factor in _STEP_SIZES]


def _tuned(case: _Case, keeping: Keeping) -> Tuned:
    """The run, from the results where it is there."""
    for record in read_records(keeping.results, Tuned):
        if record.key == case.key:
            return record
    made = _run(case, keeping)
    with held(keeping.results):
        write_records(keeping.results, [*read_records(keeping.results, Tuned), made])
    return made


def _run(case: _Case, keeping: Keeping) -> Tuned:
    def report(text: str) -> None:
        keeping.report(f"{case.label}: {text}")

    task, way = case.task, case.way
    bundle, data = _bundle(task, way, keeping.cache, report), task.devices()
    watch = Watch(case.rounds, report)
    with TemporaryDirectory() as scratch:
        simulation = begin(
            bundle,
            data.train,
            test_data=data.test,
            method=way.recipe,
            parameters=dict(way.parameters),
            clients=task.owners,
            fraction=case.clients / task.owners,
            tiers=way.tiers,
            partition="owners",
            rounds=case.rounds,
            local_steps=_LOCAL_STEPS,
            batch=_BATCH,
            lr=case.lr,
            seed=case.seed,
            evaluate_every=case.rounds,
            output=Path(scratch) / "run",
            observer=watch,
        )
        before = simulation.score(bundle.weights(), 1000)
        assert before is not None  # there is test data
        try:
            rounds = simulation.run().rounds
        except RunError as error:
            return Tuned(key=case.key, trained=bundle.layout.size, before=before.first, failed=str(error))
    after, sizes = rounds[-1].first, [size for metrics in rounds for size in metrics.uplink.values()]
    assert after is not None
    return Tuned(
        key=case.key,
        before=before.first,
        after=after,
        uplink=mean(sizes),
        step=sum(watch.cpu) / (len(sizes) * _LOCAL_STEPS),
        trained=bundle.layout.size,
    )


def _bundle(task: PretrainedTask, way: Way, cache: Path, report: Callable[[str], None]) -> Bundle:
    """What ``way`` trains of the pretrained model, from ``cache`` where this very exporter has put it there."""
    train = {"all": [], "head": [task.head], "adapters": [f"lora:{task.adapted}:r={way.rank}"]}[way.part]
    root = cache / exporter_digest() / f"{task.name}-{_digest(asdict(task), train)}"
    if (root / SEAL).exists():
        return Bundle.load(root)
    model = train_only(pretrained(task, cache, report), train)
    return export_bundle(model, task.target(_BATCH), root, report=report)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]


# --- the page


def _result(choice: FineTuningChoice, found: Mapping[tuple[str, Way], _Line]) -> Result:
    tasks = [TASKS[name] for name in choice.tasks]
    return Result(
        title="Fine-tuning a pretrained model",
        command=choice.command,
        about=" ".join(task.about for task in tasks)
        + f" {choice.clients} devices a round train {_LOCAL_STEPS} steps of a batch of {_BATCH} in onnxruntime, for "
        f"{choice.rounds} rounds. A part's step size is FedAvg's best of those a factor of 3 apart; each line has the "
        "better of that and a third of it, by another seed on the same held-out pages. "
        "LoRA trains adapters alone, with an alpha of twice the rank. By tier, equally many devices train 16, 8, 4 and "
        "2 ranks: `fjord` draws a width a step, `hetlora` averages a rank over those who have it, or pads with zeros, "
        "and `flexlora` averages products. Dropout is 0.5; `dgc` sends 5% of the entries; `fedpaq` sends 8 bits an "
        "entry. Bytes are those of a frame, the mean over devices and rounds. CPU time is that of a client's step with "
        "its frames and checks, one thread.",
        rows=[_row(name, way, line, found[name, WAYS[0]].runs) for (name, way), line in found.items()],
        pictures=[
            Picture(name, f"Accuracy on {name} by bytes of an update", partial(_draw, name, found))
            for name in choice.tasks
        ],
    )


def _row(name: str, way: Way, line: _Line, dense: Sequence[Tuned]) -> Row:
    made = [run for run in line.runs if not run.failed]
    failed = f", {len(line.runs) - len(made)} of {len(line.runs)} diverged" if len(made) < len(line.runs) else ""
    row: dict[str, str | float] = {
        "task": name,
        "trained": way.trained,
        "method": way.method,
        "numbers": line.runs[0].trained,
        "lr": line.lr,
        "before (%)": "",
        "after (%)": "diverged",
        "update (kB)": "",
        "update / all": "",
        "step (ms CPU)": "",
        "seeds": len(made),
    }
    if made:
        after, size = [100 * run.after for run in made], mean(run.uplink for run in made)
        row["before (%)"] = f"{100 * made[0].before:.2f}"
        row["after (%)"] = f"{mean(after):.2f} ± {deviation(after):.2f}{failed}"
        row["update (kB)"] = size / 1000
        whole = [run.uplink for run in dense if not run.failed]
        row["update / all"] = size / mean(whole) if whole else ""
        row["step (ms CPU)"] = 1000 * median(run.step for run in made)
    return row


def _draw(name: str, found: Mapping[tuple[str, Way], _Line], path: Path) -> None:
    """A named mark a line; what ends far below the start is left to the table."""
    before = 100 * found[name, WAYS[0]].runs[0].before
    with panels(path, columns=1, title=f"{name}: accuracy after tuning") as (panel,):
        for (task, way), line in found.items():
            runs = [run for run in line.runs if not run.failed]
            score = mean(100 * run.after for run in runs) if runs else 0.0
            if task == name and score > before - _SHOWN_BELOW:
                label = way.trained.removeprefix("LoRA, ") + ("" if way.recipe == "fedavg" else f" {way.method}")
                size = mean(run.uplink for run in runs) / 1000
                panel.plot(
                    [size], [score], marker={"all": "s", "head": "^", "adapters": "o"}[way.part], color="C0"
                )
                panel.annotate(label, (size, score), (4, 3), textcoords="offset points", fontsize="x-small")
        panel.axhline(before, linestyle="--", color="grey", label="before tuning")
        panel.set(xscale="log", xlabel="bytes of an update (kB)", ylabel="accuracy (%)", xlim=(10, 2000))
        panel.set_xticks(_TICKS, map(str, _TICKS))
        panel.minorticks_off()
