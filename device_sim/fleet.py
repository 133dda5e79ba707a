"""A fleet of real agent processes on this machine."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_fl.errors import RunError
from edge_fl.transport.connection import BrokerAddress

__all__ = ["AgentProcess", "Fleet"]

_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class AgentProcess:
    """One emulated device: its id, the data it trains on (as ``edge-fl device --data``), its tier and runtime.

    ``python`` is the command that starts its Python: this one, or another that has edge-fl's device extra.
    """

    client: str
    data: str
    tier: int = 0
    runtime: str = "onnx"
    python: tuple[str, ...] = (sys.executable,)


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
    """

    def __init__(
        self,
        agents: Sequence[AgentProcess],
        *,
        address: BrokerAddress,
        root: Path,
        once: bool = True,
        connect_timeout: float = 15.0,
    ) -> None:
        self._agents = {agent.client: agent for agent in agents}
        self._address, self._root, self._once = address, root, once
        self._connect_timeout = connect_timeout
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Fleet":
        """Start every agent."""
        self._root.mkdir(parents=True, exist_ok=True)
        for client in self._agents:
            self.start(client)
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop every agent."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, client: str) -> None:
        """Start (or start again) one agent with the state folder it had."""
        agent = self._agents[client]
        command = [
            *(*agent.python, "-m", "edge_fl", "device", *(["--once"] if self._once else [])),
            *("--broker", str(self._address), "--data", agent.data, "--id", client),
            *("--state", str(self._root / client), "--tier", str(agent.tier), "--runtime", agent.runtime),
            f"--connect-timeout={self._connect_timeout:g}",
        ]
        with self.log(client).open("ab") as log:
            self._processes[client] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def kill(self, client: str) -> None:
        """End one agent as a power cut would (SIGKILL)."""
        self._processes[client].kill()
        self._processes[client].wait()

    def log(self, client: str) -> Path:
        """Where an agent's output goes."""
        return self._root / f"{client}.log"

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
