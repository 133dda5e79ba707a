"""What the wire carries beside frames: a real fleet through a proxy that counts, by method, a client and a round."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from benchmarks.grid import opened_method, read_method
from broker.observer import Observer
from broker.session import serve
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.bad_link import BadLink
from device_sim.emulation.mosquitto import Mosquitto
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Result, Row
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from exporter.measure.cases import find_case
from exporter.measure.exported import exported

__all__ = ["METHODS", "WireSetting", "bench_wire"]

METHODS = ("fedavg", "fedbiad", "fedavg+topk", "fedavg+dgc dgc.warmup=0.001", "best-uplink")
_FIRST = 2  # rounds that are not counted: devices register, fetch the bundle, warm up
_SEGMENT, _HEADERS = 1448, 52  # bytes of a TCP segment on Ethernet, and of its IP and TCP headers
_END_SECONDS = 60.0


@dataclass(frozen=True)
class WireSetting:
    """A fleet of ``devices`` for so many ``rounds``, with each of ``methods``, which
    :func:`benchmarks.grid.read_method` reads.
    """

    model: str
    devices: int = 4
    rounds: int = 8
    methods: Sequence[str] = METHODS

    def __post_init__(self) -> None:
        if self.devices < 1 or self.rounds <= _FIRST:
            raise ConfigError(f"The wire is measured with a device or more, and more than {_FIRST} rounds.")

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        named = "".join(f" --method {shlex.quote(method)}" for method in self.methods)
        return f"edge-fl bench wire --model {self.model} --devices {self.devices} --rounds {self.rounds}{named}"


@dataclass
class _Counted(Observer):
    """Reads the proxy's counters as rounds close."""

    link: BadLink
    carried: list[dict[str, int]] = field(default_factory=list)
    frames: list[float] = field(default_factory=list)

    def round_closed(self, metrics: RoundMetrics) -> None:
        """All updates of the round have come."""
        self.carried.append(dict(self.link.carried))
        self.frames.append(mean(metrics.uplink.values()))


def bench_wire(setting: WireSetting, cache: Path, report: Callable[[str], None]) -> Result:
    """Run a fleet with each method.

    Raises
    ------
    BrokerError
        When Mosquitto is not installed.
    ConfigError, DataError
        When a method is none, or the model's data are not there.
    """
    case = find_case(setting.model)
    rows = []
    for method in setting.methods:
        variants = tuple(dict.fromkeys(("plain", opened_method(method).variant)))
        bundle = exported(case, ("onnx",), cache, report, variants=variants)
        report(f"{method}: {setting.rounds} rounds of {setting.devices} devices")
        with TemporaryDirectory() as scratch:
            rows.append(_row(method, _run(setting, method, bundle, case.dataset, Path(scratch))))
    return Result(
        title="On the wire",
        command=setting.command,
        about=f"Bytes of a client and round, in a fleet of {setting.devices} device processes and a coordinator, all "
        "behind a proxy that counts what TCP carries to and from the devices; the coordinator reaches Mosquitto "
        f"directly. The first {_FIRST} rounds, in which devices register and fetch their programs, are left out. "
        "Frames are the updates, beside them is MQTT's and the protocol's own: topics, tasks, offers, requests for "
        "chunks and acknowledgements. IP and TCP add what the last two columns say, which are computed: headers of "
        f"{_HEADERS} bytes for each {_SEGMENT} bytes, and an acknowledgement for every second segment that comes down.",
        rows=rows,
    )


@dataclass(frozen=True)
class _Round:
    """Mean bytes of a client and round."""

    frame: float
    up: float
    down: float


def _config(setting: WireSetting, method: str) -> RunConfig:
    recipe, parameters = read_method(method)
    return RunConfig(
        run="wire",
        method=recipe,
        parameters=parameters,
        rounds=setting.rounds,
        clients_per_round=setting.devices,
        min_clients=setting.devices,
        local_steps=1,
        batch=20,
        lr=0.05,
        seed=0,
        quorum=1.0,
        evaluate_every=setting.rounds,
    )


def _run(setting: WireSetting, method: str, bundle: Bundle, dataset: str, folder: Path) -> _Round:
    count = setting.devices
    agents = [AgentProcess(f"device-{i}", f"{dataset}:{i}/{count}", in_process=True) for i in range(count)]
    with (
        Mosquitto(folder) as broker,
        BadLink(broker.address) as link,
        Fleet(agents, address=link.address, root=folder / "fleet") as fleet,
    ):
        counted = _Counted(link)
        config = _config(setting, method)
        serve(bundle=bundle, config=config, root=folder / "run", address=broker.address, observer=counted)
        fleet.wait(timeout=_END_SECONDS)
    first, last = counted.carried[_FIRST - 1], counted.carried[-1]
    shares = count * (setting.rounds - _FIRST)
    return _Round(
        mean(counted.frames[_FIRST:]),
        *((last.get(way, 0) - first.get(way, 0)) / shares for way in ("up", "down")),
    )


def _row(method: str, found: _Round) -> Row:
    segments_up, segments_down = math.ceil(found.up / _SEGMENT), math.ceil(found.down / _SEGMENT)
    acknowledged_up, acknowledged_down = math.ceil(segments_down / 2), math.ceil(segments_up / 2)
    return {
        "method": method,
        "frame (bytes)": f"{found.frame:,.0f}",
        "up (bytes)": f"{found.up:,.0f}",
        "beside the frame": f"{found.up - found.frame:,.0f}",
        "down (bytes)": f"{found.down:,.0f}",
        "IP and TCP up": f"{_HEADERS * (segments_up + acknowledged_up):,}",
        "IP and TCP down": f"{_HEADERS * (segments_down + acknowledged_down):,}",
    }
