"""What each part of a deployment takes as devices, updates and workers grow, and which part gives out first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.load.turns import Fleet, Scaled, allow_files, scale_rounds
from device_sim.emulation.mosquitto import Mosquitto
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from exporter.export import export_bundle
from exporter.measure.cases import find_case

__all__ = ["ScaleSetting", "bench_scale"]

_CPU = "CPU of both (ms)"
_BARS = Bars(
    "CPU milliseconds of an update: coordinator and workers together",
    ("registered", "selected", "workers"),
    (_CPU,),
)
_ABOUT = (
    "Rounds of devices that train nothing: they hold ready updates, and speak the whole protocol in MQTT sessions of "
    "their own, many sessions to a process. The coordinator is the real one, with 0 to several worker processes. The "
    "method is FedBIAD at p = 0.5, with exact sums, so that workers also add up. Mosquitto has persistence off and "
    "unlimited queues. Everything shares this machine's cores. A round's seconds are from the first task sent to the "
    "last update accepted; closing is from there until the model is changed and recorded, without evaluation. CPU "
    "milliseconds are of one update: those of a round, closing included, by the updates in it. Figures are medians of "
    "all rounds but the first. Memory is what a process has resident after a round."
)


@dataclass(frozen=True)
class ScaleSetting:
    """Each of ``fleets`` makes ``rounds`` rounds of ``model`` with each number of ``workers``, its sessions spread over
    ``processes``.
    """

    model: str
    fleets: Sequence[Fleet]
    workers: Sequence[int]
    rounds: int
    processes: int

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        fleets = " ".join(f"--agents {fleet}" for fleet in self.fleets)
        workers = " ".join(f"--workers {count}" for count in self.workers)
        return (
            f"edge-fl bench scale {fleets} {workers} --model {self.model} --rounds {self.rounds} "
            f"--processes {self.processes}"
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
        for fleet in setting.fleets:
            for workers in setting.workers:
                folder = Path(scratch) / f"fleet-{len(rows)}"
                folder.mkdir()
                rounds = scale_rounds(
                    fleet,
                    workers=workers,
                    rounds=setting.rounds,
                    processes=setting.processes,
                    bundle=bundle,
                    folder=folder,
                    report=report,
                )
                rows.append(_row(fleet, workers, rounds[1:] or rounds))
    return Result(
        title="Growth",
        command=setting.command,
        about=_ABOUT,
        rows=rows,
        notes=[*_of_workers(rows), *_slopes(rows)],
        bars=_BARS,
    )


def _row(fleet: Fleet, workers: int, rounds: Sequence[Scaled]) -> Row:
    def mid(of: Callable[[Scaled], float]) -> float:
        return median(of(each) for each in rounds)

    each = 1000 / fleet.selected
    own = each * mid(lambda r: r.served.cpu + r.served.closing[1])
    theirs = each * mid(lambda r: r.served.workers)
    seconds, closing = mid(lambda r: r.served.seconds), mid(lambda r: r.served.closing[0])
    return {
        "registered": str(fleet.agents),
        "selected": str(fleet.selected),
        "workers": str(workers),
        "round (s)": seconds,
        "closing (s)": closing,
        "updates a second": fleet.selected / (seconds + closing),
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
    """How two workers compare with one, where both were tried."""
    found = []
    for row in rows:
        if row["workers"] != "2":
            continue
        one = [
            other
            for other in rows
            if other["workers"] == "1" and all(other[key] == row[key] for key in ("registered", "selected"))
        ]
        if one:
            cpu, seconds = (float(row[key]) / float(one[0][key]) for key in (_CPU, "round (s)"))
            found.append(
                f"{row['selected']} of {row['registered']} devices: with 2 workers an update costs {cpu:.2f} of the "
                f"CPU that it costs with 1 (goal: at most 1.2), and a round takes {seconds:.2f} of the time."
            )
    return found


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
    rate = max(float(row["updates a second"]) for row in rows)
    found.append(
        f"The most updates a second on this machine were {rate:,.0f}: 10,000 updates take {10_000 / rate:,.0f} s."
    )
    return found
