"""NATS as the embedded broker: a process beside the coordinator's, where its program is installed.

It moves several times as many bytes as amqtt. It lets in whoever reaches it: NATS binds no client id to a user, and
reads neither Mosquitto's passwords nor a list of revoked certificates. So a broker with doors stays amqtt.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from broker.listening import listening_port, reached_at
from broker.turned_away import TurnedAway
from edge_fl.core.errors import BrokerError
from edge_fl.transport.address import BrokerAddress

__all__ = ["NatsBroker", "nats_command"]

_log = logging.getLogger(__name__)

_START_SECONDS, _POLL_SECONDS = 20.0, 0.02
_AGAIN_SECONDS = 1.0  # from its end to its next start
_LARGEST_MESSAGE = 16 << 20  # bytes, as of the other embedded broker
_CONFIG = """\
server_name: edge-fl
listen: 127.0.0.1:-1
max_payload: {largest}
jetstream {{ store_dir: "{store}" }}
mqtt {{ host: "{host}", port: {port}, max_ack_pending: 1024 }}
"""


def nats_command() -> list[str] | None:
    """The command that runs NATS until this process ends, however it ends; None where there is none.

    ``setpriv`` (util-linux) has the kernel end it: the broker of a coordinator that was killed must not keep the port.
    """
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    server, setpriv = shutil.which("nats-server", path=beside), shutil.which("setpriv")
    return None if server is None or setpriv is None else [setpriv, "--pdeathsig", "KILL", server]


class NatsBroker:
    """The server's process, and a thread that starts it again where it ends by itself.

    Entering the context starts both, and waits until devices can come. What the server keeps lies in a folder for the
    time of the run. Leaving the context ends it. Sessions are lost with a server that ends, and devices come again.

    Parameters
    ----------
    command
        That of :func:`nats_command`.
    host
        The interface to listen on.
    port
        The TCP port; 0 takes a free one.

    Attributes
    ----------
    listens
        Where it listens, for people.
    address
        How this machine's coordinator reaches it.
    turned_away
        Nobody: whoever comes is let in.

    Raises
    ------
    PortError
        When the port is taken.
    """

    def __init__(self, command: list[str], *, host: str, port: int) -> None:
        self.listens = BrokerAddress(host, listening_port(host, port))
        self.address = BrokerAddress(reached_at(host), self.listens.port)
        self.turned_away = TurnedAway()
        self._command = command
        self._lock, self._over = threading.Lock(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = TemporaryDirectory(prefix="edge-fl-nats-", ignore_cleanup_errors=True)
        self._output = Path(self._folder.name) / "nats.log"
        # The kernel ends the server with the thread that started it, not with the process: this one lasts.
        self._thread = threading.Thread(target=self._keep, name="embedded-broker", daemon=True)

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> "NatsBroker":
        """Start it; raises BrokerError if it does not come up."""
        folder = Path(self._folder.name)
        listens = self.listens
        (folder / "nats.conf").write_text(
            _CONFIG.format(largest=_LARGEST_MESSAGE, store=folder / "store", host=listens.host, port=listens.port)
        )
        self._thread.start()
        until = time.monotonic() + _START_SECONDS
        while not self._answers():
            if not self._thread.is_alive() or time.monotonic() > until:
                said = self._last_line()
                self.__exit__()
                raise BrokerError(f"The embedded broker (NATS) did not start at {listens}: {said}.")
            time.sleep(_POLL_SECONDS)
        _log.info("the embedded broker is NATS")
        return self

    def __exit__(self, *_exception: object) -> None:
        """End it, and remove what it kept."""
        with self._lock:
            self._over.set()
            if self._process is not None:
                self._process.kill()
        self._thread.join(_START_SECONDS)
        self._folder.cleanup()

    def _keep(self) -> None:
        """Run the server until leaving."""
        while (process := self._run()) is not None:
            process.wait()
            if not self._over.wait(_AGAIN_SECONDS):
                _log.warning("the embedded broker (NATS) ended (%s): it is started again", self._last_line())

    def _run(self) -> "subprocess.Popen[bytes] | None":
        """Start the server; None after leaving."""
        command = [*self._command, "-c", str(Path(self._folder.name) / "nats.conf")]
        with self._lock, self._output.open("ab") as output:
            if self._over.is_set():
                return None
            # In a session of its own: Ctrl-C is for the coordinator, which takes leave of devices first.
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            return self._process

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.address.host, self.address.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _last_line(self) -> str:
        lines = self._output.read_text(errors="replace").splitlines() if self._output.exists() else []
        return lines[-1][:200].rstrip(".") if lines else "it said nothing"
