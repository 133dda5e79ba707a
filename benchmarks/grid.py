"""A grid of runs, each made once: filled from a file of records and, as far as time allows, by simulation."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.records import held, read_records, write_records
from benchmarks.runs import Record, Run, bundle_of, key_of, make_run
from benchmarks.setups import setup_of, setup_parameters
from edge_fl.core.errors import ConfigError
from edge_fl.methods.base import Method
from edge_fl.recipes.presets import expanded
from edge_fl.recipes.recipe import open_recipe, shares_in_thousandths
from exporter.measure.cases import BATCH

__all__ = ["Choice", "Entry", "Filled", "Filling", "entry", "fill", "opened_method", "read_method"]

_KAPPA = 10  # one client of so many is picked a round


@dataclass(frozen=True)
class Choice:
    """What the user chose of every grid: data sets, seeds, and what takes the place of the setups' own settings.

    ``methods`` are as :func:`read_method` reads them; None stands for those of the benchmark. ``clients``,
    ``partition``, ``model``, ``local_steps``, ``batch`` and ``lr`` are the setup's, 60, 20 and the setup's where they
    are None or empty. ``weight_decay`` is that of clients' SGD, ``evaluate_every`` how often models are looked at, at
    least, and ``device`` where clients train: ``cpu`` or ``cuda``.
    """

    datasets: Sequence[str]
    seeds: Sequence[int]
    methods: Sequence[str] | None = None
    rounds: int = 60
    clients: int | None = None
    partition: str = ""
    model: str = ""
    local_steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    weight_decay: float = 0.0
    evaluate_every: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for dataset in self.datasets:
            setup_of(dataset)

    def command(self, bench: str) -> str:
        """The command line that gives the same grid."""
        names = {
            "clients": self.clients,
            "partition": self.partition or None,
            "model": self.model or None,
            "local-steps": self.local_steps,
            "batch": self.batch,
            "lr": self.lr,
            "weight-decay": self.weight_decay or None,
        }
        return " ".join(
            [
                f"edge-fl bench {bench}",
                *(f"--dataset {name}" for name in self.datasets),
                *(f"--method {shlex.quote(name)}" for name in self.methods or ()),
                *(f"--seed {seed}" for seed in self.seeds),
                f"--rounds {self.rounds}",
                *([f"--evaluate-every {self.evaluate_every}"] if self.evaluate_every > 1 else []),
                *(f"--{name} {value}" for name, value in names.items() if value is not None),
                *([f"--device {self.device}"] if self.device != "cpu" else []),
            ]
        )


@dataclass(frozen=True)
class Entry:
    """A line of a table: what distinguishes it, by column, and a run for each seed."""

    dataset: str
    columns: Mapping[str, str | float]
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """What a plot calls it."""
        return ", ".join(str(value) for value in self.columns.values())


@dataclass(frozen=True)
class Filled:
    """An entry with what was found of its runs, in the order of its seeds; those that failed are ``failures``."""

    entry: Entry
    records: tuple[Record, ...]
    failures: tuple[str, ...] = ()

    @property
    def made(self) -> bool:
        """Whether any of the runs was made."""
        return bool(self.records or self.failures)

    @property
    def run(self) -> Run:
        """One of the runs, which differ by seed only."""
        return self.entry.runs[0]


@dataclass(frozen=True)
class Filling:
    """How a grid is filled.

    Parameters
    ----------
    results
        The JSON file of records, which several benchmarks may share, also at the same time.
    cache
        Where bundles are kept.
    minutes
        After so many no run is begun, of 0 none at all; None for as long as it takes.
    report
        Told of what is being done.
    """

    results: Path
    cache: Path
    minutes: float | None
    report: Callable[[str], None]

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes >= 0:
            raise ConfigError(f"A time budget is a number of minutes from 0 on, not {self.minutes:g}.")


def read_method(text: str) -> tuple[str, dict[str, Any]]:
    """A recipe's name and parameters, those of a preset too, of ``fedbiad+dgc dgc.ratio=0.0019 dropout=0.2,0.5``.

    Raises ConfigError when there is no such recipe, or ``text`` holds anything else.
    """
    name, *given = text.split() or [""]
    parameters: dict[str, Any] = {}
    for setting in given:
        key, found, value = setting.partition("=")
        if not found or not key or key in parameters:
            raise ConfigError(f"'{text}' is no method with parameters such as 'fedbiad mode=units', each once.")
        parameters[key] = value.split(",") if "," in value else value
    recipe, preset = expanded(name, {})
    asked = {**preset, **shares_in_thousandths(recipe, parameters)}
    opened = open_recipe(recipe, asked).parameters  # numbers, where text was given
    return recipe, {key: opened[key] for key in asked}


def opened_method(text: str) -> Method:
    """The method of what :func:`read_method` reads; raises as that does."""
    return open_recipe(*read_method(text)).method


def entry(
    choice: Choice,
    dataset: str,
    method: str,
    columns: Mapping[str, str | float],
    parameters: Mapping[str, Any] | None = None,
    **others: Any,
) -> Entry:
    """The runs of ``method`` on ``dataset`` as its setup and ``choice`` have it.

    Parameters
    ----------
    method
        As :func:`read_method` reads it; the parameters in it go before the setup's.
    columns
        What distinguishes them in a table.
    parameters
        The recipe's that the benchmark sets, in place of the setup's; ``method`` may not name them.
    others
        Further fields of the run, or others than the setup's and the choice's.

    Raises
    ------
    ConfigError, DataError, ModelError
        When they make no sense.
    """
    setup, (recipe, chosen) = setup_of(dataset), read_method(method)
    own, tiers = setup_parameters(setup, recipe, int(others.get("rounds", choice.rounds)))
    if chosen.keys() & {"dropout", "widths", "levels"}:
        tiers = open_recipe(recipe, chosen).method.tiers
    if twice := sorted(chosen.keys() & (parameters or {}).keys()):
        raise ConfigError(f"This table sets '{twice[0]}' itself: leave it out of --method '{method}'.")
    clients = choice.clients or setup.clients
    run = replace(
        Run(
            dataset=dataset,
            recipe=open_recipe(recipe, {}).name,
            parameters=own | chosen | dict(parameters or {}),
            seed=0,
            rounds=choice.rounds,
            clients=clients,
            clients_per_round=max(clients // _KAPPA, 1),
            partition=choice.partition or setup.partition,
            tiers=tiers,
            local_steps=choice.local_steps or 60,
            batch=choice.batch or BATCH,
            lr=setup.lr if choice.lr is None else choice.lr,
            clip=setup.clip,
            weight_decay=choice.weight_decay,
            model=choice.model,
            evaluate_every=choice.evaluate_every,
            device=choice.device,
        ),
        **others,
    )
    if run.model == setup.model:
        run = replace(run, model="")  # one run, however it was asked for
    for refuse_early in (run.open, run.config, run.population, run.case):
        refuse_early()
    return Entry(dataset, columns, tuple(replace(run, seed=seed) for seed in choice.seeds))


def fill(entries: Sequence[Entry], how: Filling) -> tuple[list[Filled], list[str]]:
    """Make the runs that no record tells of, first those of the first seed, and give what is known then.

    Returns
    -------
    Every entry of which a run was made, and what was not run for want of time: the entries of each data set that lack
    the same seeds.

    Raises
    ------
    DataError
        When the records are another benchmark's or another version's, or data cannot be had.
    ConfigError
        When a run makes no sense, or no run was made at all.
    StateError
        When the records cannot be written.
    """
    wanted = _by_seed(entries)
    _make(wanted, how)
    known = _known(how.results)
    seldom = how.minutes == 0
    found = [filled for filled in (_filled(one, known, seldom=seldom) for one in entries) if filled.made]
    if not found and how.minutes == 0:
        raise ConfigError(
            f"'{how.results}' holds none of these runs, and a time budget of 0 makes none: give the options of those "
            "that it holds, or a larger budget."
        )
    if not found:
        raise ConfigError("The time budget was spent before any run was begun: raise it.")
    return found, _missing(entries, known, seldom=seldom)


def _make(wanted: Mapping[bytes, tuple[str, Run]], how: Filling) -> None:
    """Make what no record tells of until time is spent; the file is read anew, as others may write to it, too."""
    until = None if how.minutes is None else time.monotonic() + 60 * how.minutes
    for number, (key, (name, run)) in enumerate(wanted.items(), start=1):
        if _record(_known(how.results), run):
            continue
        if until is not None and time.monotonic() >= until:
            return
        told = partial(_tell, how, f"run {number} of {len(wanted)}, {name}")
        record = make_run(run, bundle_of(run, how.cache, told), told)
        with held(how.results):
            write_records(how.results, list((_known(how.results) | {key: record}).values()))


def _tell(how: Filling, name: str, text: str) -> None:
    how.report(f"{name}: {text}")


def _by_seed(entries: Sequence[Entry]) -> dict[bytes, tuple[str, Run]]:
    """The runs by key, each with its name, those of the first seed first."""
    count = max((len(entry.runs) for entry in entries), default=0)
    pairs = [(entry, entry.runs[i]) for i in range(count) for entry in entries]
    return {
        key_of(run, run.in_effect()): (f"{entry.label} on {run.dataset}, seed {run.seed}", run)
        for entry, run in pairs
    }


def _known(results: Path) -> dict[bytes, Record]:
    return {record.key: record for record in read_records(results, Record)}


def _record(known: Mapping[bytes, Record], run: Run, *, seldom: bool = False) -> Record | None:
    """What is known of ``run``, if it was looked at as often as is asked, or may have been more ``seldom``."""
    record = known.get(key_of(run, run.in_effect()))
    often = record is not None and run.evaluate_every % record.run.evaluate_every == 0
    return record if often or seldom else None


def _missing(entries: Sequence[Entry], known: Mapping[bytes, Record], *, seldom: bool) -> list[str]:
    groups: dict[tuple[str, tuple[int, ...]], dict[str, None]] = {}
    for one in entries:
        seeds = tuple(run.seed for run in one.runs if not _record(known, run, seldom=seldom))
        if seeds:
            groups.setdefault((one.dataset, seeds), {})[one.label] = None
    return [
        f"{dataset}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}: {'; '.join(labels)}"
        for (dataset, seeds), labels in groups.items()
    ]


def _filled(entry: Entry, known: Mapping[bytes, Record], *, seldom: bool) -> Filled:
    found = [_record(known, run, seldom=seldom) for run in entry.runs]
    made = [record for record in found if record is not None]
    return Filled(
        entry,
        tuple(record for record in made if not record.failed),
        tuple(record.failed for record in made if record.failed),
    )
