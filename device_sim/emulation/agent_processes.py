"""A fleet of real agent processes on this machine."""

import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edge_fl.core.errors import RunError
from edge_fl.transport.address import BrokerAddress

__all__ = ["AgentProcess", "Fleet", "FleetProcess", "Surroundings"]

_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Surroundings:
    """What a fleet tells each of its processes.

    Parameters
    ----------
    address
        The broker.
    root
        Holds the state folders of all agents, by their ids.
    once
        Whether agents end with the first run, or serve run after run.
    connect_timeout
        Seconds for which an agent looks for the broker when it starts.
    """

    address: BrokerAddress
    root: Path
    once: bool
    connect_timeout: float


class FleetProcess(Protocol):
    """A process of a fleet."""

    @property
    def client(self) -> str:
        """Its name, and of the one agent it is, if it is one, the id."""

    def command(self, around: Surroundings) -> list[str]:
        """What starts it."""


@dataclass(frozen=True)
class AgentProcess:
    """One device: its id, the data it trains on (as ``edge-fl device --data``), its tier, its runtime, and the share of
    the data that it holds out.

    ``python`` is the command that starts its Python: this one, or another that has edge-fl's device extra. With
    ``in_process`` programs run in the agent's process, for where it can start no other.
    """

    client: str
    data: str
    tier: int = 0
    runtime: str = "onnx"
    python: tuple[str, ...] = (sys.executable,)
    test_share: float = 0.0
    in_process: bool = False

    def command(self, around: Surroundings) -> list[str]:
        """`edge-fl device`."""
        return [
            *(*self.python, "-m", "edge_fl", "device", *(["--once"] if around.once else [])),
            *("--broker", str(around.address), "--data", self.data, "--id", self.client),
            *("--state", str(around.root / self.client), "--tier", str(self.tier), "--runtime", self.runtime),
            *(f"--connect-timeout={around.connect_timeout:g}", f"--test-share={self.test_share:g}"),
            *(["--in-process"] if self.in_process else []),
        ]


class Fleet:
    """Agents in processes of their own, each with a state folder and a log under ``root``.

    Leaving the context stops whoever still runs.

    Parameters
    ----------
    agents
        The devices.
    address
        The broker they connect to.
    root
        Where ``<client>/`` (state) and ``<client>.log`` go.
    once
        Whether the agents end with the first run, or serve run after run until the context ends.
    connect_timeout
        Seconds for which an agent looks for the broker when it starts.
    later
        Who is not started at first.
    """

    def __init__(
        self,
        agents: Sequence[FleetProcess],
        *,
        address: BrokerAddress,
        root: Path,
        once: bool = True,
        connect_timeout: float = 15.0,
        later: Collection[str] = (),
    ) -> None:
        self._agents = {agent.client: agent for agent in agents}
        self._around = Surroundings(address, root, once, connect_timeout)
        self._stopped = set(later)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Fleet":
        """Start every agent."""
        self._around.root.mkdir(parents=True, exist_ok=True)
        for client in self._agents:
            if client not in self._stopped:
                self.start(client)
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop every agent."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            _end(process)

    def start(self, client: str) -> None:
        """Start (or start again) one agent with the state folder it had."""
        command = self._agents[client].command(self._around)
        with self.log(client).open("ab") as log:
            self._processes[client] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        self._stopped.discard(client)  # who asks meanwhile is not told of the process before

    def stop(self, client: str) -> None:
        """End one agent as its user would (SIGTERM), until it is started again."""
        self._stopped.add(client)
        self._processes[client].terminate()
        _end(self._processes[client])

    def stopped(self, client: str) -> bool:
        """Whether it is neither started nor ended by itself."""
        return client in self._stopped

    def signal(self, client: str, number: int) -> None:
        """Send a signal to one agent."""
        self._processes[client].send_signal(number)

    def kill(self, client: str) -> None:
        """End one agent as a power cut would (SIGKILL)."""
        self._processes[client].kill()
        self._processes[client].wait()

    def pids(self) -> list[int]:
        """The processes that were started, by number."""
        return [process.pid for process in list(self._processes.values())]

    def ended(self) -> dict[str, int]:
        """Who has ended by itself, and the exit code; minus the signal's number where it was one."""
        codes = {client: p.poll() for client, p in list(self._processes.items()) if client not in self._stopped}
        return {client: code for client, code in codes.items() if code is not None}

    def log(self, client: str) -> Path:
        """Where an agent's output goes."""
        return self._around.root / f"{client}.log"

    def wait(self, timeout: float) -> None:
        """Wait for every agent to end by itself with exit code 0.

        Raises
        ------
        RunError
            Naming the first agent that failed or is still running after ``timeout`` seconds.
        """
        until = time.monotonic() + timeout
        for client, process in self._processes.items():
            try:
                code = process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise RunError(
                    f"Agent '{client}' still runs after {timeout:.0f} s; see {self.log(client)}."
                ) from error
            if code != 0:
                raise RunError(f"Agent '{client}' ended with exit code {code}; see {self.log(client)}.")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that was told to end, and kill it if it does not."""
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
