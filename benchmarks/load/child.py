"""Processes of a benchmark that are led over a pipe."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from edge_fl.core.errors import EdgeFLError, RunError
from edge_fl.runs.config import RunConfig
from edge_fl.transport.address import BrokerAddress

__all__ = ["Child", "Place", "cpu_seconds"]

_SPAWN = multiprocessing.get_context("spawn")
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Place:
    """What the coordinator's process and the devices' have in common: broker, bundle and run."""

    address: BrokerAddress
    bundle: Path
    config: RunConfig


class Child:
    """One process; leaving the context ends it.

    Parameters
    ----------
    name
        What an error calls it.
    main
        What it does: called with its end of a pipe and the ``arguments``.
    parent
        Whether it starts processes, which end with it.
    """

    def __init__(self, name: str, main: Callable[..., None], *arguments: Any, parent: bool = False) -> None:
        self._name = name
        self._pipe, other = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_guarded, args=(main, other, *arguments), name=name, daemon=not parent
        )
        self._process.start()
        other.close()

    def __enter__(self) -> "Child":
        """It runs already."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """End it, however far it is."""
        self._process.terminate()
        self._process.join(_STOP_SECONDS)
        self._process.kill()
        self._process.join()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: object) -> None:
        """Tell it something."""
        self._pipe.send(message)

    def receive(self, timeout: float, besides: Sequence["Child"] = ()) -> Any:
        """What it says next; raises RunError when it fails, says nothing for ``timeout`` seconds, or waits for others
        ``besides`` of which one ends.
        """
        ready = wait([self._pipe, *(child._process.sentinel for child in besides)], timeout)
        if self._pipe not in ready:
            for child in besides:
                if child._process.sentinel in ready:
                    child.receive(0)
        try:
            said = self._pipe.recv() if self._pipe in ready else RunError(f"nothing for {timeout:.0f} s")
        except (EOFError, OSError):  # the latter where it ended before it read what it was told
            self._process.join(_STOP_SECONDS)
            said = RunError(f"it ended with exit code {self._process.exitcode}")
        if isinstance(said, EdgeFLError):
            raise RunError(f"The benchmark's {self._name} failed: {said}") from said
        return said


def cpu_seconds(pid: int) -> float:
    """CPU time that a process of this machine has had, in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _guarded(main: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    try:
        main(pipe, *arguments)
    except EdgeFLError as error:
        pipe.send(RunError(str(error)))
