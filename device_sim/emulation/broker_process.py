"""A broker as a process of this machine, whatever its program."""

import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from edge_fl.core.errors import BrokerError
from edge_fl.transport.address import BrokerAddress

__all__ = ["BrokerProcess"]

_START_SECONDS = 10.0


class BrokerProcess:
    """A broker's program, which runs in ``folder`` until the context is left, and may be killed and started again.

    Parameters
    ----------
    name
        What errors call it.
    command
        Its program and arguments.
    address
        Where it listens, the same one after every start.
    folder
        Takes its log.

    Attributes
    ----------
    address
        As given.
    """

    def __init__(self, name: str, command: tuple[str, ...], *, address: BrokerAddress, folder: Path) -> None:
        self.address = address
        self._name, self._command, self._folder = name, command, folder
        self._log = folder / f"{name.lower()}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it; raises BrokerError if it does not come up."""
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """End it."""
        self.kill()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, for the first time or again, and wait until it is up; raises BrokerError if it does not come up."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._folder)
        until = time.monotonic() + _START_SECONDS
        while not self._is_up():
            if time.monotonic() > until or self._process.poll() is not None:
                self.kill()
                raise BrokerError(f"{self._name} did not start at {self.address}; it says why in {self._log}.")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_up(self) -> bool:
        """Whether it listens."""
        try:
            socket.create_connection((self.address.host, self.address.port), timeout=1).close()
        except OSError:
            return False
        return True
