"""A fleet of emulated devices on this machine: real agents, on slow processors, in little memory, over bad links."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sim.emulation.agent_processes import Fleet, Surroundings
from device_sim.emulation.bad_link import BadLink
from device_sim.emulation.emulated_agent import BatterySettings, EmulatedAgent, EmulatedProcess
from device_sim.emulation.fleet_file import Device, FleetFile
from edge_fl.transport.address import BrokerAddress

__all__ = ["EmulatedFleet"]

_POLL_SECONDS = 0.1
_JOULES = 3600.0  # of a Wh


@dataclass(frozen=True)
class _Process:
    """A process of the fleet, and what each of its devices reaches the broker by."""

    client: str
    devices: tuple[Device, ...]
    brokers: Mapping[str, BrokerAddress]
    runtime: str
    began: float

    def command(self, around: Surroundings) -> list[str]:
        """An emulated agent, or several."""
        agents = tuple(self._agent(device, around.root) for device in self.devices)
        process = EmulatedProcess(agents=agents, once=around.once, connect_timeout=around.connect_timeout)
        return [sys.executable, "-m", "device_sim.emulation.emulated_agent", msgspec.json.encode(process).decode()]

    def online(self, now: float) -> bool:
        """Whether it runs at so many seconds of its devices' time."""
        times = self.devices[0].group.online
        return not times or any(since <= now < until for since, until in times)

    def comes_after(self, now: float) -> bool:
        """Whether it runs at any time after that."""
        return any(until > now for _, until in self.devices[0].group.online)

    def _agent(self, device: Device, root: Path) -> EmulatedAgent:
        profile, battery = device.profile, None
        if profile.battery_wh is not None:
            battery = BatterySettings(
                _JOULES * profile.battery_wh, device.group.battery, profile.watts, device.group.charging
            )
        return EmulatedAgent(
            client=device.client,
            data=device.data,
            broker=str(self.brokers[device.client]),
            state=str(root / device.client),
            runtime=self.runtime,
            tier=device.group.tier,
            test_share=device.group.test_share,
            share=device.share,
            scale=device.scale,
            memory_mb=device.memory_mb,
            battery=battery,
            began=self.began,
            costs=str(root / "step-costs.jsonl"),
        )


class EmulatedFleet:
    """The devices of a fleet file, each behind its link; leaving the context stops whoever still runs.

    Parameters
    ----------
    file
        Describes them.
    address
        Their broker.
    root
        Takes state folders and logs, as :class:`device_sim.emulation.agent_processes.Fleet` has them.
    once
        Whether agents end with the first run, or serve run after run until the context ends.
    connect_timeout
        Seconds for which an agent looks for the broker when it starts.

    Attributes
    ----------
    devices
        Who is in it.

    Raises
    ------
    ConfigError
        When a profile is unknown, or when this machine has not the processors for all of them.
    """

    def __init__(
        self,
        file: FleetFile,
        *,
        address: BrokerAddress,
        root: Path,
        once: bool = True,
        connect_timeout: float = 15.0,
    ) -> None:
        self.devices = file.members()
        self._file, self._address = file, address
        self._root, self._once, self._connect_timeout = root, once, connect_timeout
        self._context = ExitStack()
        self._over = threading.Event()
        self._turns = threading.Thread(target=self._take_turns, name="fleet", daemon=True)

    def __enter__(self) -> "EmulatedFleet":
        """Start the links, and every agent that is there at the beginning."""
        began = self._began = time.time()
        with ExitStack() as stack:
            links = {device.profile.link.slowed(device.scale): device.client for device in self.devices}
            proxies = {link: stack.enter_context(BadLink(self._address, link=link)) for link in links}
            brokers = {d.client: proxies[d.profile.link.slowed(d.scale)].address for d in self.devices}
            processes = [
                _Process(devices[0].client, devices, brokers, self._file.runtime, began)
                for devices in _batched(self.devices, self._file.agents_per_process)
            ]
            self._processes = {process.client: process for process in processes}
            self._fleet = Fleet(
                processes,
                address=self._address,
                root=self._root,
                once=self._once,
                connect_timeout=self._connect_timeout,
                later=[process.client for process in processes if not process.online(0.0)],
            )
            stack.enter_context(self._fleet)
            self._context = stack.pop_all()
        self._turns.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop every agent, then the links."""
        self._over.set()
        self._turns.join()
        self._context.close()

    @property
    def running(self) -> bool:
        """Whether any device runs, or will."""
        now, ended = (time.time() - self._began) / self._file.scale, self._fleet.ended()
        return any(
            process.comes_after(now) if self._fleet.stopped(client) else client not in ended
            for client, process in self._processes.items()
        )

    def problems(self) -> dict[str, str]:
        """Who has ended otherwise than well, and why, by the id of the process's first device."""
        return {client: self._problem(client, code) for client, code in self._fleet.ended().items() if code}

    def _problem(self, client: str, code: int) -> str:
        log = self._fleet.log(client)
        if code < 0:
            limit = sum(device.memory_mb for device in self._processes[client].devices)
            return (
                f"{client}: It was ended by {signal.Signals(-code).name}, which may be its runtime's answer to the "
                f"limit of {limit} MB of memory; its log is {log}."
            )
        return log.read_text(errors="replace").strip().splitlines()[-1]

    def _take_turns(self) -> None:
        """Start and stop devices at their times."""
        while not self._over.wait(_POLL_SECONDS):
            now, ended = (time.time() - self._began) / self._file.scale, self._fleet.ended()
            for client, process in self._processes.items():
                stopped = self._fleet.stopped(client)
                if stopped and process.online(now):
                    self._fleet.start(client)
                elif not stopped and client not in ended and not process.online(now):
                    self._fleet.stop(client)


def _batched(devices: tuple[Device, ...], size: int) -> Iterator[tuple[Device, ...]]:
    return (devices[start : start + size] for start in range(0, len(devices), size))
