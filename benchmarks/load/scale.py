"""What each part of a deployment takes as devices, updates and workers grow, and which part gives out first."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.load.turns import Fleet, Scaled, Stage, allow_files, scale_rounds
from device_sim.emulation.mosquitto import Mosquitto
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from exporter.export import export_bundle
from exporter.measure.cases import find_case

__all__ = ["ScaleSetting", "bench_scale"]

_MOST_WAITING = 8000  # sessions of all runs that take turns
_CPU, _ROUND, _RATE, _SPEED = "CPU of both (ms)", "round (s)", "updates a second", "a core's speed"
_BARS = Bars(
    "CPU milliseconds of an update: coordinator and workers together",
    ("registered", "selected", _SPEED, "workers"),
    (_CPU,),
)
_ABOUT = (
    "Rounds of devices that train nothing: they hold ready updates, and speak the whole protocol in MQTT sessions of "
    "their own, many sessions to a process. The coordinator is the real one, with 0 to several worker processes. The "
    "method is FedBIAD at p = 0.5, with exact sums, so that workers also add up. Mosquitto has persistence off and "
    "unlimited queues. Everything shares this machine's cores. Runs with other numbers of workers take turns, a round "
    "each, so that a slow phase of the machine is one of all. The others stay connected meanwhile; runs of more than "
    f"{_MOST_WAITING} sessions in all come one after another. Where a core's speed is 1/4, coordinator and workers "
    "each run 5 ms of every 20. They stand still in between, and mostly leave a core free. Mosquitto and devices run "
    "at full speed. "
    "A round's seconds are from the first task sent to the last update accepted; closing is from there until the "
    "model is changed and recorded, without evaluation. CPU milliseconds are of one update: those of a round, closing "
    "included, by the updates in it. Figures are medians of all rounds but the first. Memory is what a process has "
    "resident after a round."
)


@dataclass(frozen=True)
class ScaleSetting:
    """Each of ``fleets`` makes ``rounds`` rounds of ``model`` with each number of ``workers``, its sessions spread over
    ``processes``, once for each of ``turns``: coordinator and workers run one of every so many.
    """

    model: str
    fleets: Sequence[Fleet]
    workers: Sequence[int]
    rounds: int
    processes: int
    turns: Sequence[int] = (1,)

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        fleets = " ".join(f"--agents {fleet}" for fleet in self.fleets)
        workers = " ".join(f"--workers {count}" for count in self.workers)
        slowed = "".join(f" --slowed {turns}" for turns in self.turns)
        return (
            f"edge-fl bench scale {fleets} {workers} --model {self.model} --rounds {self.rounds} "
            f"--processes {self.processes}{slowed}"
        )


def bench_scale(setting: ScaleSetting, report: Callable[[str], None]) -> Result:
    """Make every fleet's rounds with each number of workers.

    Parameters
    ----------
    report
        Told of what is being done.

    Raises
    ------
    BrokerError, ConfigError, DataError, RunError
        As :func:`benchmarks.load.bench.bench_load`.
    """
    for fleet in setting.fleets:
        allow_files(fleet)
    rows: list[Row] = []
    with TemporaryDirectory() as scratch:
        Mosquitto(Path(scratch))  # refuses now what it would refuse then
        report(f"{setting.model}: exporting")
        case = find_case(setting.model)
        bundle = export_bundle(case.build(), case.target("onnx"), Path(scratch) / "bundle")
        for fleet, turns, workers in _groups(setting):
            with _stages(Path(scratch) / f"{len(rows)}", workers) as stages:
                found = scale_rounds(
                    fleet,
                    stages,
                    turns=turns,
                    rounds=setting.rounds,
                    processes=setting.processes,
                    bundle=bundle,
                    report=report,
                )
            for stage, rounds in zip(stages, found, strict=True):
                rows.append({**_place(fleet, turns, stage.workers), **_figures(fleet, rounds[1:] or rounds)})
    return Result(
        title="Growth",
        command=setting.command,
        about=_ABOUT,
        rows=rows,
        notes=[*_of_workers(rows), *_of_free_cores(rows), *_slopes(rows)],
        bars=_BARS,
    )


def _groups(setting: ScaleSetting) -> Iterator[tuple[Fleet, int, Sequence[int]]]:
    """Fleets, turns, and the numbers of workers whose runs take turns with each other.

    Of a large fleet each is alone: sessions that wait take CPU, and a port each.
    """
    for fleet, turns in product(setting.fleets, setting.turns):
        together = fleet.agents * len(setting.workers) <= _MOST_WAITING
        for workers in [setting.workers] if together else [[count] for count in setting.workers]:
            yield fleet, turns, workers


@contextmanager
def _stages(folder: Path, workers: Sequence[int]) -> Iterator[list[Stage]]:
    """A stage for each number of workers, with a broker and a folder each, below ``folder``."""
    with ExitStack() as stack:
        stages = []
        for number, count in enumerate(workers):
            place = folder / str(number)
            place.mkdir(parents=True)
            stages.append(Stage(stack.enter_context(Mosquitto(place)), place, count))
        yield stages


def _place(fleet: Fleet, turns: int, workers: int) -> Row:
    return {
        "registered": str(fleet.agents),
        "selected": str(fleet.selected),
        _SPEED: "1" if turns == 1 else f"1/{turns}",
        "workers": str(workers),
    }


def _figures(fleet: Fleet, rounds: Sequence[Scaled]) -> Row:
    def mid(of: Callable[[Scaled], float]) -> float:
        return median(of(each) for each in rounds)

    each = 1000 / fleet.selected
    own = each * mid(lambda r: r.served.cpu + r.served.closing[1])
    theirs = each * mid(lambda r: r.served.workers)
    seconds, closing = mid(lambda r: r.served.seconds), mid(lambda r: r.served.closing[0])
    return {
        _ROUND: seconds,
        "closing (s)": closing,
        _RATE: fleet.selected / (seconds + closing),
        "coordinator (ms)": own,
        "workers (ms)": theirs,
        _CPU: own + theirs,
        "Mosquitto (ms)": each * mid(lambda r: r.broker),
        "devices (ms)": each * mid(lambda r: r.devices),
        "coordinator (MB)": mid(lambda r: r.served.resident / 1e6),
        "a worker (MB)": mid(lambda r: r.served.worker_memory / 1e6),
        "Mosquitto (MB)": mid(lambda r: r.broker_memory / 1e6),
        "kB an update": mid(lambda r: sum(r.served.up.values()) / 1e3 / fleet.selected),
    }


def _of_workers(rows: Sequence[Row]) -> list[str]:
    """How two workers compare with one, where both were tried at full speed."""
    found = []
    for row in rows:
        one = _beside(row, rows, workers="1")
        if row["workers"] == "2" and row[_SPEED] == "1" and one:
            found.append(
                f"{row['selected']} of {row['registered']} devices: with 2 workers an update costs "
                f"{_ratio(row, one, _CPU):.2f} of the CPU that it costs with 1 (goal: at most 1.2), and a round takes "
                f"{_ratio(row, one, _ROUND):.2f} of the time."
            )
    return found


def _of_free_cores(rows: Sequence[Row]) -> list[str]:
    """What workers save of a round where cores are slow, and so some are free."""
    found = []
    for row in rows:
        alone = _beside(row, rows, workers="0")
        if row["workers"] != "0" and row[_SPEED] != "1" and alone:
            workers = "1 worker" if row["workers"] == "1" else f"{row['workers']} workers"
            found.append(
                f"{row['selected']} of {row['registered']} devices, {row[_SPEED]} of a core each: with {workers} a "
                f"round and its closing take {_ratio(alone, row, _RATE):.2f} of the time without."
            )
    return found


def _beside(row: Row, rows: Sequence[Row], *, workers: str) -> Row | None:
    """The row that differs in the number of workers alone."""
    alike = ("registered", "selected", _SPEED)
    return next((o for o in rows if o["workers"] == workers and all(o[key] == row[key] for key in alike)), None)


def _ratio(row: Row, other: Row, column: str) -> float:
    return float(row[column]) / float(other[column])


def _slopes(rows: Sequence[Row]) -> list[str]:
    """What each registered device takes of memory, and how far that leads; nothing where one number was tried."""
    registered = np.array([float(row["registered"]) for row in rows])
    if len(set(registered.tolist())) < 2:
        return []
    found = []
    for part in ("coordinator", "Mosquitto"):
        slope, start = np.polyfit(registered, [float(row[f"{part} (MB)"]) for row in rows], 1)
        ahead = " and ".join(
            f"{(start + slope * number) / 1000:,.1f} GB at {number:,}" for number in (1_000_000, 100_000_000)
        )
        found.append(f"{part}: {1000 * slope:.1f} kB a registered device, {ahead} (extrapolated).")
    rate = max(float(row[_RATE]) for row in rows)
    found.append(
        f"The most updates a second on this machine were {rate:,.0f}: 10,000 updates take {10_000 / rate:,.0f} s."
    )
    return found
