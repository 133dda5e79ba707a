"""Rounds of fleets of different sizes, and a page of what they took."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.load.tls import encrypting, handshakes
from benchmarks.load.turns import Fleet, Turn, allow_files, take_turns
from device_sim.emulation.mosquitto import Mosquitto
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from exporter.export import export_bundle
from exporter.measure.cases import find_case

__all__ = ["LoadSetting", "bench_load"]

_BARS = Bars(
    "Seconds of a round of so many devices, the median of five rounds",
    ("selected", "TLS"),
    ("bare (s)", "hashing (s)", "edge-fl (s)"),
    where={"round": "median"},
)

_RATIO, _MEMORY, _GROWTH = 1.3, 500, 1.05
_ABOUT = (
    "A round of many devices through Mosquitto (persistence off, unlimited queues), once by a bare paho program "
    "and once by the coordinator, in turn, with the same sessions: each device subscribes for both. The "
    "coordinator is the real one (FedBIAD at p = 0.5) in a process of its own. The devices, many to a process, "
    "speak the whole protocol but hold the bundle already, and their updates, frames and hashes, are made before "
    "the round: nothing trains. The bare program publishes the chunks of as many bytes to each device at QoS 1, "
    "paho's 20 in flight, and each device that has them publishes as many bytes back as an update has; it asks, "
    "hashes, checks and keeps nothing. A second round of it, 'hashing', differs in that both ends take the "
    "SHA-256 of what arrives, the least that content known by its hash can cost. Seconds are from the first chunk "
    "published to the last update arrived, and from the first task sent to the last update accepted, which is "
    "then verified, checked, on disk and in the record; evaluation and aggregation are not in it. CPU seconds are "
    "each process's own, the devices' those of all their processes. Devices, Mosquitto and coordinator share "
    "this machine's cores. Memory is the coordinator's, after the round and at the most in it; 'sent again' "
    "counts models that travelled twice, 'lost' updates that were asked for and not accepted."
)


@dataclass(frozen=True)
class LoadSetting:
    """Each of ``fleets`` makes ``rounds`` rounds of ``model``, its agents spread over ``processes``; with ``tls`` once
    more, encrypted.
    """

    model: str
    fleets: Sequence[Fleet]
    rounds: int
    processes: int
    tls: bool = False

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        fleets = " ".join(f"--agents {fleet}" for fleet in self.fleets)
        tls = " --tls" if self.tls else ""
        return (
            f"edge-fl bench load {fleets} --model {self.model} --rounds {self.rounds} "
            f"--processes {self.processes}{tls}"
        )


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
        When a fleet needs more open files than this machine allows a process.
    DataError
        When the model's data set, which rounds are scored on, cannot be had.
    RunError
        When a process fails, or says nothing for ten minutes.
    """
    for fleet in setting.fleets:
        allow_files(fleet)
    rows: list[Row] = []
    with TemporaryDirectory() as scratch:
        Mosquitto(Path(scratch))  # refuses now what it would refuse then
        report(f"{setting.model}: exporting")
        case = find_case(setting.model)
        bundle = export_bundle(case.build(), case.target("onnx"), Path(scratch) / "bundle")
        for number, fleet in enumerate(setting.fleets):
            for encrypted in (False, True) if setting.tls else (False,):
                folder = Path(scratch) / f"fleet-{number}{'-tls' * encrypted}"
                folder.mkdir()
                turns = take_turns(
                    fleet,
                    rounds=setting.rounds,
                    processes=setting.processes,
                    bundle=bundle,
                    broker=encrypting(folder) if encrypted else Mosquitto(folder),
                    folder=folder,
                    report=report,
                )
                rows += _rows(fleet, encrypted, turns)
        notes = _handshakes(Path(scratch)) if setting.tls else []
    return Result(
        title="Many devices over TLS" if setting.tls else "Many devices at once",
        command=setting.command,
        about=_ABOUT,
        rows=rows,
        bars=_BARS,
        notes=notes,
    )


def _handshakes(scratch: Path) -> list[str]:
    with encrypting(scratch) as broker:
        took = handshakes(broker.address)
    return [
        f"A TLS handshake takes {1000 * took.full:.2f} ms, and one that resumes a session "
        f"{1000 * took.resumed:.2f} ms, the broker's part included (medians of 200). "
        "Devices make a full one whenever they connect."
    ]


def _rows(fleet: Fleet, encrypted: bool, turns: Sequence[Turn]) -> list[Row]:
    rows = [_row(fleet, encrypted, str(number), [turn]) for number, turn in enumerate(turns, start=1)]
    return [*rows, {**_row(fleet, encrypted, "median", turns), "goals": _goals(turns)}]


def _row(fleet: Fleet, encrypted: bool, number: str, turns: Sequence[Turn]) -> Row:
    def mid(of: Callable[[Turn], float]) -> float:
        return median(of(turn) for turn in turns)

    ours, theirs = mid(lambda t: t.served.seconds), mid(lambda t: t.moved.seconds)
    hashing = mid(lambda t: t.hashed.seconds)
    return {
        "registered": str(fleet.agents),
        "selected": str(fleet.selected),
        "TLS": "yes" if encrypted else "no",
        "round": number,
        "bare (s)": theirs,
        "hashing (s)": hashing,
        "edge-fl (s)": ours,
        "hashing / bare": hashing / theirs,
        "edge-fl / bare": ours / theirs,
        "CPU of bare": mid(lambda t: t.moved.cpu),
        "its Mosquitto's": mid(lambda t: t.moved_around[0]),
        "its devices'": mid(lambda t: t.moved_around[1]),
        "CPU when hashing": mid(lambda t: t.hashed.cpu),
        "Mosquitto's then": mid(lambda t: t.hashed_around[0]),
        "devices' then": mid(lambda t: t.hashed_around[1]),
        "CPU of coordinator": mid(lambda t: t.served.cpu),
        "Mosquitto's": mid(lambda t: t.served_around[0]),
        "devices'": mid(lambda t: t.served_around[1]),
        "resident (MB)": mid(lambda t: t.served.resident / 1e6),
        "peak (MB)": mid(lambda t: t.served.peak / 1e6),
        "MB up": mid(lambda t: sum(t.served.up.values()) / 1e6),
        "sent again": mid(lambda t: round(sum(t.served.down.values()) / t.model, 3) - fleet.selected),
        "lost": mid(lambda t: fleet.selected - len(t.served.up)),
        "goals": "",
    }


def _goals(turns: Sequence[Turn]) -> str:
    """Each goal, and whether it was reached; memory counts from the second round on."""
    ratio = median(t.served.seconds for t in turns) / median(t.moved.seconds for t in turns)
    peaks = [turn.served.peak for turn in turns]
    growth = max(peaks[2:], default=0) / peaks[min(1, len(peaks) - 1)]
    reached = {
        f"edge-fl / bare ≤ {_RATIO:g}": ratio <= _RATIO,
        f"peak ≤ {_MEMORY} MB": max(peaks) <= _MEMORY * 1e6,
        f"peak of later rounds ≤ {_GROWTH:g} of the second's": growth <= _GROWTH,
        "none lost": all(set(turn.served.up) == set(turn.served.down) for turn in turns),
    }
    return "; ".join(f"{goal}: {'yes' if is_so else 'no'}" for goal, is_so in reached.items())
