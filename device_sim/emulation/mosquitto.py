"""Debian's Mosquitto as a process of this machine, to measure and to test against."""

import os
import shutil
import signal
import socket
from pathlib import Path

from device_sim.emulation.broker_process import BrokerProcess
from edge_fl.core.errors import BrokerError
from edge_fl.transport.address import BrokerAddress

__all__ = ["Mosquitto", "free_port", "mosquitto_program"]


def mosquitto_program() -> str | None:
    """Where Mosquitto is installed, if it is; Debian has it where only root looks for programs."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Mosquitto(BrokerProcess):
    """A broker on a port of this machine, which drops nothing that waits and keeps nothing on disk.

    Parameters
    ----------
    folder
        Takes its configuration and log.
    address
        Where it listens; None for a free port.
    config
        The lines of its configuration; None to let in whoever comes.

    Raises
    ------
    BrokerError
        When Mosquitto is not installed.
    """

    def __init__(self, folder: Path, *, address: BrokerAddress | None = None, config: str | None = None) -> None:
        program = mosquitto_program()
        if program is None:
            raise BrokerError("Mosquitto is not installed: on Debian, apt-get install mosquitto brings it.")
        address, file = address or BrokerAddress("127.0.0.1", free_port()), folder / "mosquitto.conf"
        file.write_text(
            config
            or f"listener {address.port} {address.host}\nallow_anonymous true\n"
            "persistence false\nmax_queued_messages 0\n"
        )
        super().__init__("Mosquitto", (program, "-c", str(file.absolute())), address=address, folder=folder)

    def reload(self) -> None:
        """Have it read its configuration and lists again (SIGHUP)."""
        os.kill(self.pid, signal.SIGHUP)

    def _is_up(self) -> bool:
        return super()._is_up() and self._reloads()

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
