"""A broker that encrypts, and what a TLS handshake with it takes."""

import os
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from broker.provision.authority import Authority
from device_sim.emulation.mosquitto import Mosquitto, free_port
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress

__all__ = ["Handshakes", "encrypting", "handshakes"]

_HOST = "127.0.0.1"
_REPEATS = 200


def encrypting(folder: Path) -> Mosquitto:
    """A Mosquitto that lets in whoever comes, by TLS, and otherwise is as the plain one.

    Raises BrokerError when Mosquitto is not installed.
    """
    port = free_port()
    authority = Authority.create(folder / "authority", hosts=[_HOST], port=port)
    own = (authority.folder / "broker.pem").resolve()
    config = (
        f"listener {port} {_HOST}\nallow_anonymous true\ncertfile {own}\nkeyfile {own}\n"
        "persistence false\nmax_queued_messages 0\n"
    )
    if os.geteuid() == 0:
        config += "user root\n"  # only its owner reads the key
    access = Access(ca=authority.folder / "ca.pem")
    return Mosquitto(folder, address=BrokerAddress(_HOST, port, "mqtts", access=access), config=config)


@dataclass(frozen=True)
class Handshakes:
    """Seconds of a TLS handshake, the median: a full one, and one that resumes a session."""

    full: float
    resumed: float


def handshakes(address: BrokerAddress) -> Handshakes:
    """Time handshakes with a broker."""
    context = address.access.context()
    full, resumed = [], []
    for _ in range(_REPEATS):
        seconds, session = _handshake(context, address, None)
        full.append(seconds)
        resumed.append(_handshake(context, address, session)[0])
    return Handshakes(median(full), median(resumed))


def _handshake(
    context: ssl.SSLContext, address: BrokerAddress, session: ssl.SSLSession | None
) -> tuple[float, ssl.SSLSession | None]:
    with socket.create_connection((address.host, address.port)) as plain:
        begun = time.perf_counter()
        with context.wrap_socket(plain, server_hostname=address.host, session=session) as secured:
            seconds = time.perf_counter() - begun
            secured.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x14\x00\x01t")
            secured.recv(4)  # CONNACK, after the session's ticket
            return seconds, secured.session
