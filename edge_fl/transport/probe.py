"""Whether a broker lets messages through: small ones, and those as large as a chunk."""

import time

from edge_fl.core.content import CHUNK_SIZE
from edge_fl.core.errors import BrokerError
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Disconnected, Message

__all__ = ["round_trip"]

_SECONDS = 5.0
_TRIES = 4  # of a chunk: a link may lose one by chance, stall, or end the session


def round_trip(address: BrokerAddress, *, client: str, topic: str, timeout: float) -> float | None:
    """Send messages to oneself through a broker, in a session of its own.

    Parameters
    ----------
    client
        The session's MQTT client id.
    topic
        Where the client may publish and subscribe.
    timeout
        Seconds to try the connection for.

    Returns
    -------
    Seconds that a small message takes; None where it does not come back in 5 s.

    Raises
    ------
    BrokerError
        When no broker answers, or it lets small messages through and no chunk of 256 KiB.
    """
    connection = Connection(address=address, client_id=client, subscriptions=[topic])
    connection.open(timeout=timeout)
    try:
        seconds = _returns(connection, topic, client.encode())
        if seconds is not None and not any(
            _chunk_returns(connection, topic, client.encode()) for _ in range(_TRIES)
        ):
            raise BrokerError(
                f"The broker at {address} lets no message of {CHUNK_SIZE >> 10} KiB through, in which bundles and "
                "models travel: raise its limit (Mosquitto: message_size_limit 0), or see to the link."
            )
        return seconds
    finally:
        connection.close()


def _returns(connection: Connection, topic: str, payload: bytes) -> float | None:
    began = time.monotonic()
    connection.publish(topic, payload)
    while (left := began + _SECONDS - time.monotonic()) > 0:
        if connection.next(left) == Message(topic, payload):
            return time.monotonic() - began
    return None


def _chunk_returns(connection: Connection, topic: str, small: bytes) -> bool:
    """Whether a chunk comes back, and before the small message that is sent behind it."""
    chunk = bytes(CHUNK_SIZE)
    connection.publish(topic, chunk)
    connection.publish(topic, small)
    until = time.monotonic() + _SECONDS
    while (left := until - time.monotonic()) > 0:
        match connection.next(left):
            case Message(payload=payload) if payload in (chunk, small):
                return payload == chunk
            case Disconnected():
                _await_session(connection)
                return False
    return False


def _await_session(connection: Connection) -> None:
    until = time.monotonic() + _SECONDS
    while (left := until - time.monotonic()) > 0:
        if isinstance(connection.next(left), Connected):
            return
