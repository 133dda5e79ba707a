"""A large model to devices on slow links and their updates back, while the broker dies once: what is sent twice."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from benchmarks.load import coordinator
from benchmarks.load.child import Child, Place
from benchmarks.load.config import patient_config
from benchmarks.load.coordinator import Asking, Served
from device_sim.emulation.bad_link import BadLink, Faults
from device_sim.emulation.crowd import CrowdDevice, ReadyUpdates
from device_sim.emulation.mosquitto import Mosquitto
from device_sim.emulation.sessions import Publish, Sessions
from device_sim.simulation.links import Link
from edge_fl.core.bundle import Bundle
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.wire.messages import Topics
from exporter.measure.cases import find_case
from exporter.measure.exported import exported

__all__ = ["Line", "Transfer", "TransferSetting", "bench_transfer", "transfer"]

_BARS = Bars(
    "Bytes that travelled, as a share of the model and of the update", ("device",), ("/ model", "/ update")
)

_WAIT_SECONDS = 3600.0
_AWAY_SECONDS, _POLL_SECONDS = 1.0, 0.02
_MEGABIT = 1e6 / 8
_METHOD = "fedavg"


@dataclass(frozen=True)
class Line:
    """Each device's line: Mbps ``down`` and ``up``, the share of messages that it loses, and seconds each way."""

    down: float = 110.6
    up: float = 14.0
    loss: float = 0.01
    latency: float = 0.02

    @property
    def link(self) -> Link:
        """Its speeds and latency."""
        return Link(self.down, self.up, latency=self.latency)

    @property
    def faults(self) -> Faults:
        """What is lost on it: messages whole, behind TCP's back."""
        return Faults(drop=self.loss)

    def floor(self, model: int, update: int) -> float:
        """Seconds in which so many bytes come down and go up at the least."""
        return model / (self.down * _MEGABIT) + update / (self.up * _MEGABIT)


@dataclass(frozen=True)
class TransferSetting:
    """A round of ``model`` with so many ``devices``, each on a ``line`` of its own."""

    model: str
    devices: int
    line: Line

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        line = self.line
        return (
            f"edge-fl bench transfer --model {self.model} --devices {self.devices} --down {line.down:g} "
            f"--up {line.up:g} --loss {line.loss:g} --latency {line.latency:g}"
        )


@dataclass(frozen=True)
class Transfer:
    """What a round took and moved: bytes of the ``model``, bytes ``down`` and ``up`` by device.

    ``accepted`` are the updates of each device that it knows to be taken; ``seconds`` are from the first task to the
    last accepted update; ``moving`` and ``peak`` are bytes of the coordinator's memory, at the most until then and in
    the whole round.
    """

    model: int
    update: int
    down: dict[str, int]
    up: dict[str, int]
    accepted: dict[str, int]
    seconds: float
    moving: int
    peak: int


def bench_transfer(setting: TransferSetting, cache: Path, report: Callable[[str], None]) -> Result:
    """Make the round; raises BrokerError when Mosquitto is not installed, RunError when a process fails."""
    bundle = exported(find_case(setting.model), ("onnx",), cache, report)
    with TemporaryDirectory() as scratch:
        moved = transfer(bundle, setting.devices, setting.line, Path(scratch), report)
    floor = setting.line.floor(moved.model, moved.update)
    rows = [_row(name, moved, [name]) for name in sorted(moved.down)]
    return Result(
        title="A large model over slow links",
        command=setting.command,
        about=f"One round of {setting.model}: the model goes to {setting.devices} devices and a dense update comes "
        "back from each, through Mosquitto. Every device has a line of its own of "
        f"{setting.line.down:g} Mbps down and {setting.line.up:g} Mbps up, {1000 * setting.line.latency:g} ms each "
        f"way, which loses {setting.line.loss:.0%} of all MQTT messages for good, chunks among them; the line is a "
        "proxy on this machine, as is all else. When half of all the model's bytes have left the broker it is killed "
        "(SIGKILL, nothing kept on disk), and started again a second later. The coordinator is the real one in a "
        "process of its own; the devices speak the whole protocol, in one process, and train nothing: their updates "
        "are made before the round. Bytes are those of all chunks published, each time they are.",
        rows=[*rows, _row("all", moved, list(moved.down))],
        bars=_BARS,
        notes=[
            f"From the first task to the last accepted update: {moved.seconds:.1f} s. At the lines' rates alone, "
            f"{moved.model / 1e6:.1f} MB down and {moved.update / 1e6:.1f} MB up take {floor:.1f} s: "
            f"{moved.seconds / floor:.2f} times that.",
            f"The coordinator's memory was {moved.moving / 1e6:.0f} MB at the most until then, and "
            f"{moved.peak / 1e6:.0f} MB with the round's sums and its evaluation.",
        ],
    )


def transfer(bundle: Bundle, devices: int, line: Line, folder: Path, report: Callable[[str], None]) -> Transfer:
    """Make one round with so many ``devices``, and kill the broker as half of the model's bytes have come down.

    Raises
    ------
    BrokerError
        When Mosquitto is not installed.
    RunError
        When a process fails, or says nothing for an hour.
    """
    names = [f"device-{number:02d}" for number in range(devices)]
    with (
        Mosquitto(folder) as broker,
        BadLink(broker.address, line.faults, link=line.link) as link,
        Child(
            "coordinator", coordinator.main, Place(broker.address, bundle.root, _config(devices)), folder / "run"
        ) as lead,
        Child("devices", _devices, Place(link.address, bundle.root, _config(devices)), names) as crowd,
    ):
        update: int = crowd.receive(_WAIT_SECONDS)
        asking: Asking = lead.receive(_WAIT_SECONDS)
        report(f"{devices} devices, {asking.model / 1e6:.1f} MB to each")
        half = link.carried["down"] + devices * asking.model / 2
        lead.send(None)
        until = time.monotonic() + _WAIT_SECONDS
        while link.carried["down"] < half and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        report("the broker is killed")
        broker.kill()
        time.sleep(_AWAY_SECONDS)
        broker.start()
        served: Served = lead.receive(_WAIT_SECONDS)
        report("every update is there")
        lead.receive(_WAIT_SECONDS)  # its farewell, before which the last devices may not know
        crowd.send(None)
        up, accepted = crowd.receive(_WAIT_SECONDS)
    return Transfer(asking.model, update, served.down, up, accepted, served.seconds, served.moving, served.peak)


def _devices(pipe: Connection, place: Place, clients: Sequence[str]) -> None:
    """Be these devices until the pipe says something; say how large an update is, and at last what became of theirs."""
    config, topics, sessions = place.config, Topics(), Sessions(place.address)
    layout = Bundle.load(place.bundle).layout
    updates = ReadyUpdates(layout, open_recipe(config.method, config.parameters), config.run)
    updates.prepare(clients, 1)
    pipe.send(updates.make(clients[0], 1).ref.size)
    devices: dict[str, CrowdDevice] = {}

    def device(client: str, publish: Publish) -> CrowdDevice:
        devices[client] = CrowdDevice(client, topics=topics, update=updates, publish=publish)
        return devices[client]

    for client in clients:
        sessions.open(
            client,
            subscriptions=CrowdDevice.subscriptions(topics, client),
            endpoint=partial(device, client),
            will=CrowdDevice.will(topics, client),
        )
    sessions.run(pipe.poll)
    pipe.send(({name: d.sent for name, d in devices.items()}, {name: d.accepted for name, d in devices.items()}))
    sessions.close()


def _config(devices: int) -> RunConfig:
    config = patient_config(
        "transfer", _METHOD, {}, rounds=1, selected=devices, registered=devices, wait=_WAIT_SECONDS
    )
    return replace(config, gone_after=_WAIT_SECONDS)


def _row(name: str, moved: Transfer, devices: Sequence[str]) -> Row:
    down, up = (sum(of[device] for device in devices) for of in (moved.down, moved.up))
    return {
        "device": name,
        "MB sent to it": down / 1e6,
        "/ model": f"{down / (moved.model * len(devices)):.3f}",
        "MB it sent": up / 1e6,
        "/ update": f"{up / (moved.update * len(devices)):.3f}",
        "updates accepted": str(sum(moved.accepted[device] for device in devices)),
    }
