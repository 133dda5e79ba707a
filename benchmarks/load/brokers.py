"""The same rounds over Mosquitto, over NATS, and over amqtt, which `serve --broker embedded` starts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.load.child import Child
from benchmarks.load.nats import Nats
from benchmarks.load.turns import Fleet, MeasuredBroker, Scaled, Stage, allow_files, scale_rounds
from broker.embedded import EmbeddedBroker
from device_sim.emulation.mosquitto import Mosquitto
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from edge_fl.transport.address import BrokerAddress
from exporter.export import export_bundle
from exporter.measure.cases import find_case

__all__ = ["BrokersSetting", "bench_brokers"]

_BROKERS = ("Mosquitto", "NATS", "amqtt")
_START_SECONDS = 60.0
_ROUND = "round (s)"
_BARS = Bars("Seconds of a round over each broker", ("selected", "broker"), (_ROUND,))
_ABOUT = (
    "Rounds of devices that train nothing, over one broker after another: devices hold ready updates, and speak the "
    "whole protocol in MQTT sessions of their own, many sessions to a process. The coordinator is the real one, in a "
    "process of its own; the method is FedBIAD at p = 0.5. Each broker is a process: here amqtt is one, too, and not a "
    "thread of the coordinator as in `serve`, where both share one core. Mosquitto has persistence off and unlimited "
    "queues; NATS is one server with its streams on disk, and consumers in memory. Everything shares this machine's "
    "cores. A round's seconds are from the first task sent to the last update accepted. CPU milliseconds are of one "
    "update. Figures are medians of all rounds but the first. Memory is what the broker's process has resident after a "
    "round."
)


@dataclass(frozen=True)
class BrokersSetting:
    """Each of ``fleets`` makes ``rounds`` rounds of ``model``, its sessions spread over ``processes``."""

    model: str
    fleets: Sequence[Fleet]
    rounds: int
    processes: int

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        fleets = " ".join(f"--agents {fleet}" for fleet in self.fleets)
        return (
            f"edge-fl bench brokers {fleets} --model {self.model} --rounds {self.rounds} "
            f"--processes {self.processes}"
        )


def bench_brokers(setting: BrokersSetting, report: Callable[[str], None]) -> Result:
    """Make every fleet's rounds over each broker.

    Parameters
    ----------
    report
        Told of what is being done.

    Raises
    ------
    BrokerError
        When Mosquitto or NATS is not installed.
    ConfigError, DataError, RunError
        As :func:`benchmarks.load.bench.bench_load`.
    """
    for fleet in setting.fleets:
        allow_files(fleet)
    rows: list[Row] = []
    with TemporaryDirectory() as scratch:
        for installed in (Mosquitto, Nats):
            installed(Path(scratch))  # refuses now what it would refuse then
        report(f"{setting.model}: exporting")
        case = find_case(setting.model)
        bundle = export_bundle(case.build(), case.target("onnx"), Path(scratch) / "bundle")
        for fleet in setting.fleets:
            seconds: dict[str, float] = {}
            for name in _BROKERS:
                folder = Path(scratch) / f"fleet-{len(rows)}"
                folder.mkdir()
                report(f"{fleet} agents: {name}")
                with _broker(name, folder) as broker:
                    (rounds,) = scale_rounds(
                        fleet,
                        [Stage(broker, folder)],
                        turns=1,
                        rounds=setting.rounds,
                        processes=setting.processes,
                        bundle=bundle,
                        report=report,
                    )
                figures = _figures(fleet, rounds[1:] or rounds)
                seconds[name] = figures[_ROUND]
                rows.append(
                    {
                        "registered": str(fleet.agents),
                        "selected": str(fleet.selected),
                        "broker": name,
                        **figures,
                        "/ Mosquitto": seconds[name] / seconds["Mosquitto"],
                    }
                )
    return Result(title="Brokers", command=setting.command, about=_ABOUT, rows=rows, bars=_BARS)


def _figures(fleet: Fleet, rounds: Sequence[Scaled]) -> dict[str, float]:
    def mid(of: Callable[[Scaled], float]) -> float:
        return median(of(each) for each in rounds)

    each, seconds = 1000 / fleet.selected, mid(lambda r: r.served.seconds)
    return {
        _ROUND: seconds,
        "updates a second": fleet.selected / seconds,
        "broker (ms)": each * mid(lambda r: r.broker),
        "coordinator (ms)": each * mid(lambda r: r.served.cpu),
        "devices (ms)": each * mid(lambda r: r.devices),
        "broker (MB)": mid(lambda r: r.broker_memory / 1e6),
    }


@contextmanager
def _broker(name: str, folder: Path) -> Iterator[MeasuredBroker]:
    if name == "amqtt":
        with Child("embedded broker", _embedded) as child:
            yield _InChild(child.receive(_START_SECONDS), child.pid)
        return
    with Mosquitto(folder) if name == "Mosquitto" else Nats(folder) as broker:
        yield broker


@dataclass(frozen=True)
class _InChild:
    """A broker of another process."""

    address: BrokerAddress
    pid: int


def _embedded(pipe: Connection) -> None:
    """Be amqtt until the pipe ends."""
    with EmbeddedBroker(port=0) as broker:
        pipe.send(broker.address)
        pipe.recv()
