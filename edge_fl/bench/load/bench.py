"""Leads the processes, turn by turn, and makes a page of what they tell."""

import resource
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from broker.config import RunConfig
from broker.model import GlobalModel
from broker.tasks import make_task
from device_sim.crowd import ReadyUpdate
from device_sim.mosquitto import Mosquitto
from edge_fl.bench.cases import BATCH, find_case
from edge_fl.bench.load import bare, coordinator, devices
from edge_fl.bench.load.bare import Moved
from edge_fl.bench.load.child import Child, cpu_seconds
from edge_fl.bench.load.coordinator import Asking, Served
from edge_fl.bench.table import Result, Row
from edge_fl.bundle import Bundle
from edge_fl.errors import ConfigError, RunError
from edge_fl.recipe import open_recipe
from edge_fl.transport.transfer import ref_of
from exporter.export import export_bundle

__all__ = ["Fleet", "LoadSetting", "bench_load"]

_METHOD, _PARAMETERS = "fedbiad", {"dropout": [500]}
_RATIO, _MEMORY, _GROWTH = 1.3, 500, 1.05
_WAIT_SECONDS = 600.0
_SPARE_FILES = 200
_ABOUT = "TODO"
_NOTES = ("TODO",)


@dataclass(frozen=True)
class Fleet:
    """So many ``agents`` are registered, of which ``selected`` are asked a round."""

    agents: int
    selected: int

    @classmethod
    def parse(cls, text: str) -> "Fleet":
        """Read ``AGENTS`` or ``AGENTS/SELECTED``; raises ConfigError on anything else."""
        agents, _, selected = text.partition("/")
        try:
            fleet = cls(int(agents), int(selected or agents))
        except ValueError:
            fleet = cls(0, 0)
        if not 0 < fleet.selected <= fleet.agents:
            raise ConfigError(f"A fleet is so many agents, or agents/selected a round, unlike '{text}'.")
        return fleet

    def __str__(self) -> str:
        return f"{self.agents}/{self.selected}"


@dataclass(frozen=True)
class LoadSetting:
    """Each of ``fleets`` makes ``rounds`` rounds of ``model``, its agents spread over ``processes``."""

    model: str
    fleets: Sequence[Fleet]
    rounds: int
    processes: int

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        fleets = " ".join(f"--agents {fleet}" for fleet in self.fleets)
        return (
            f"edge-fl bench load {fleets} --model {self.model} --rounds {self.rounds} --processes {self.processes}"
        )


@dataclass(frozen=True)
class _Turn:
    """One round of the bare program and one of the coordinator; the CPU seconds are Mosquitto's and the devices'."""

    moved: Moved
    moved_around: tuple[float, float]
    served: Served
    served_around: tuple[float, float]


def bench_load(setting: LoadSetting, report: Callable[[str], None]) -> Result:
    """Make every fleet's rounds, in turn with the bare program.

    Parameters
    ----------
    report
        Told of what is being done.

    Raises
    ------
    BrokerError
        When Mosquitto is not installed.
    ConfigError
        When a fleet makes no sense, or needs more open files than this machine allows a process.
    DataError
        When the model's data set, which rounds are scored on, cannot be had.
    RunError
        When bytes are lost, or a process fails.
    """
    for fleet in setting.fleets:
        _allow_files(fleet)
    rows: list[Row] = []
    with TemporaryDirectory() as scratch:
        Mosquitto(Path(scratch))  # refuses now what it would refuse then
        report(f"{setting.model}: exporting")
        case = find_case(setting.model)
        bundle = export_bundle(case.build(), case.target("onnx"), Path(scratch) / "bundle")
        for fleet in setting.fleets:
            folder = Path(scratch) / str(fleet.agents)
            folder.mkdir()
            rows += _rows(
                fleet, _turns(fleet, setting, bundle, folder, report), _sizes(bundle, _config(fleet, setting))[0]
            )
    return Result(
        title="Many devices at once",
        command=setting.command,
        about=_ABOUT,
        rows=rows,
        notes=_NOTES,
    )


def _allow_files(fleet: Fleet) -> None:
    """Let every process to come open as many files as it needs."""
    needed = fleet.agents + _SPARE_FILES  # Mosquitto has a connection to each
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > hard:
        raise ConfigError(
            f"{fleet.agents} agents need {needed} open files, and this machine allows {hard} (ulimit -Hn)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


def _turns(
    fleet: Fleet, setting: LoadSetting, bundle: Bundle, folder: Path, report: Callable[[str], None]
) -> list[_Turn]:
    config = _config(fleet, setting)
    model, update = _sizes(bundle, config)
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(folder))
        address = broker.address
        lead = stack.enter_context(
            Child("coordinator", coordinator.main, bundle.root, config, folder / "run", address)
        )
        names = [f"device-{number:05d}" for number in range(fleet.agents)]
        crowds = [
            stack.enter_context(
                Child("devices", devices.main, address, bundle.root, names[i :: setting.processes], model, update)
            )
            for i in range(setting.processes)
        ]
        plain = stack.enter_context(Child("bare program", bare.main, address, model, update))
        around = (broker.pid, [crowd.pid for crowd in crowds])
        turns = []
        for number in range(1, setting.rounds + 1):
            asking: Asking = lead.receive(_WAIT_SECONDS)
            report(f"{fleet.agents} agents, {fleet.selected} selected: round {number}")
            before = _cpu(*around)
            plain.send(asking.clients)
            moved: Moved = plain.receive(_WAIT_SECONDS)
            between = _cpu(*around)
            lead.send(None)
            served: Served = lead.receive(_WAIT_SECONDS)
            after = _cpu(*around)
            turns.append(_Turn(moved, _less(between, before), served, _less(after, between)))
        for crowd in crowds:
            crowd.send(None)
        accepted = sum(crowd.receive(_WAIT_SECONDS) for crowd in crowds)
    if accepted != setting.rounds * fleet.selected:
        raise RunError(f"The devices know of {accepted} accepted updates, not {setting.rounds * fleet.selected}.")
    return turns


def _config(fleet: Fleet, setting: LoadSetting) -> RunConfig:
    return RunConfig(
        run="load",
        method=_METHOD,
        parameters=_PARAMETERS,
        rounds=setting.rounds,
        clients_per_round=fleet.selected,
        min_clients=fleet.agents,
        local_steps=1,
        batch=BATCH,
        lr=0.1,
        seed=0,
        quorum=1.0,
        deadline=_WAIT_SECONDS,
        wait=_WAIT_SECONDS,
    )


def _sizes(bundle: Bundle, config: RunConfig) -> tuple[int, int]:
    """Bytes of a model frame and of an update."""
    recipe = open_recipe(config.method, config.parameters)
    model = GlobalModel(bundle.layout, bundle.weights(), recipe=recipe, run=config.run).frame()
    task = make_task(
        config,
        recipe,
        bundle.layout,
        client="device-00000",
        tier=0,
        round=1,
        accepted=0,
        model=ref_of(model),
    )
    return len(model), len(ReadyUpdate(bundle.layout)(client="device-00000", task=task))


def _cpu(broker: int, crowds: Sequence[int]) -> tuple[float, float]:
    return cpu_seconds(broker), sum(cpu_seconds(crowd) for crowd in crowds)


def _less(after: tuple[float, float], before: tuple[float, float]) -> tuple[float, float]:
    return after[0] - before[0], after[1] - before[1]


def _rows(fleet: Fleet, turns: Sequence[_Turn], model: int) -> list[Row]:
    rows = [_row(fleet, str(number), [turn], model) for number, turn in enumerate(turns, start=1)]
    return [*rows, {**_row(fleet, "median", turns, model), "goals": _goals(turns)}]


def _row(fleet: Fleet, number: str, turns: Sequence[_Turn], model: int) -> Row:
    def mid(of: Callable[[_Turn], float]) -> float:
        return median(of(turn) for turn in turns)

    ours, theirs = mid(lambda t: t.served.seconds), mid(lambda t: t.moved.seconds)
    return {
        "registered": str(fleet.agents),
        "selected": str(fleet.selected),
        "round": number,
        "bare (s)": theirs,
        "edge-fl (s)": ours,
        "/ bare": ours / theirs,
        "CPU of bare": mid(lambda t: t.moved.cpu),
        "its Mosquitto's": mid(lambda t: t.moved_around[0]),
        "its devices'": mid(lambda t: t.moved_around[1]),
        "CPU of coordinator": mid(lambda t: t.served.cpu),
        "Mosquitto's": mid(lambda t: t.served_around[0]),
        "devices'": mid(lambda t: t.served_around[1]),
        "resident (MB)": mid(lambda t: t.served.resident / 1e6),
        "peak (MB)": mid(lambda t: t.served.peak / 1e6),
        "MB up": mid(lambda t: sum(t.served.up.values()) / 1e6),
        "sent again": mid(lambda t: round(sum(t.served.down.values()) / model, 3) - fleet.selected),
        "lost": mid(lambda t: fleet.selected - len(t.served.up)),
        "goals": "",
    }


def _goals(turns: Sequence[_Turn]) -> str:
    """Each goal, and whether it was reached; memory counts from the second round on."""
    ratio = median(t.served.seconds for t in turns) / median(t.moved.seconds for t in turns)
    peaks = [turn.served.peak for turn in turns]
    growth = max(peaks[2:], default=0) / peaks[min(1, len(peaks) - 1)]
    reached = {
        f"/ bare ≤ {_RATIO:g}": ratio <= _RATIO,
        f"peak ≤ {_MEMORY} MB": max(peaks) <= _MEMORY * 1e6,
        f"peak of later rounds ≤ {_GROWTH:g} of the second's": growth <= _GROWTH,
        "none lost": all(set(turn.served.up) == set(turn.served.down) for turn in turns),
    }
    return "; ".join(f"{goal}: {'yes' if is_so else 'no'}" for goal, is_so in reached.items())
