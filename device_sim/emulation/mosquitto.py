"""Debian's Mosquitto as a process of this machine, to measure and to test against."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from edge_fl.core.errors import BrokerError
from edge_fl.transport.address import BrokerAddress

__all__ = ["Mosquitto", "free_port", "mosquitto_program"]

_START_SECONDS = 10.0


def mosquitto_program() -> str | None:
    """Where Mosquitto is installed, if it is; Debian has it where only root looks for programs."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Mosquitto:
    """A broker on a port of this machine, which drops nothing that waits and keeps nothing on disk.

    Leaving the context ends it.

    Parameters
    ----------
    folder
        Takes its configuration and log.
    address
        Where it listens; None for a free port.
    config
        The lines of its configuration; None to let in whoever comes.

    Attributes
    ----------
    address
        Where it listens, the same one after every start.

    Raises
    ------
    BrokerError
        When Mosquitto is not installed.
    """

    def __init__(self, folder: Path, *, address: BrokerAddress | None = None, config: str | None = None) -> None:
        program = mosquitto_program()
        if program is None:
            raise BrokerError("Mosquitto is not installed: on Debian, apt-get install mosquitto brings it.")
        self.address = address or BrokerAddress("127.0.0.1", free_port())
        self._log, file = folder / "mosquitto.log", folder / "mosquitto.conf"
        file.write_text(
            config
            or f"listener {self.address.port} {self.address.host}\nallow_anonymous true\n"
            "persistence false\nmax_queued_messages 0\n"
        )
        self._folder, self._command = folder, (program, "-c", str(file.absolute()))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Mosquitto":
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
        while not (self._listens() and self._reloads()):
            if time.monotonic() > until or self._process.poll() is not None:
                self.kill()
                raise BrokerError(f"Mosquitto did not start at {self.address}; it says why in {self._log}.")
            time.sleep(0.02)

    def reload(self) -> None:
        """Have it read its configuration and lists again (SIGHUP)."""
        os.kill(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _listens(self) -> bool:
        try:
            socket.create_connection((self.address.host, self.address.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _reloads(self) -> bool:
        """Whether SIGHUP is for it to handle: it listens a moment earlier, and then the signal would end it."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return False
        caught = int(status.partition("SigCgt:")[2].split(maxsplit=1)[0], 16)
        return bool(caught & 1 << (signal.SIGHUP - 1))


def free_port() -> int:
    """A TCP port of this machine that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
