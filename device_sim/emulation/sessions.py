"""Many MQTT sessions in one process: a paho client each, all of them driven by one thread from one selector."""

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edge_fl.core.errors import BrokerError
from edge_fl.transport.address import BrokerAddress

__all__ = ["Endpoint", "Publish", "Sessions"]

_QOS = 1
_KEEPALIVE = 20  # seconds, as a device's
_TICK_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_POLL_SECONDS = 0.1

Publish = Callable[[str, bytes], Callable[[], bool]]
"""Sends a payload to a topic at QoS 1, and returns what tells whether it has left: see ``Connection.publish``."""


class Endpoint(Protocol):
    """What a session talks to, on the thread that runs the sessions."""

    def connected(self) -> None:
        """The session is up, for the first time or again, and what it subscribes to acknowledged."""

    def received(self, topic: str, payload: bytes) -> None:
        """A message has come."""

    def tick(self, now: float) -> None:
        """Time has passed; ``now`` in monotonic seconds."""


class Sessions:
    """MQTT sessions that are run together, and reconnected when they are lost.

    Parameters
    ----------
    address
        The broker.
    """

    def __init__(self, address: BrokerAddress) -> None:
        self._address = address
        self._tls = (
            address.access.context() if address.encrypted else None
        )  # one for all: each would read the files
        self._selector = selectors.DefaultSelector()
        self._sessions: list[_Session] = []
        self._ticked = 0.0

    def open(
        self,
        client_id: str,
        *,
        subscriptions: Sequence[str],
        endpoint: Callable[[Publish], Endpoint],
        will: tuple[str, bytes] | None = None,
    ) -> None:
        """Add a session; it comes up while :meth:`run` is at work.

        Parameters
        ----------
        endpoint
            Makes what the session talks to, of what publishes in its name.
        will
            Topic and payload that the broker publishes when the session is lost.

        Raises
        ------
        BrokerError
            When no broker answers.
        """
        session = _Session(self._selector, client_id, subscriptions, will)
        if self._tls is not None:
            session.client.tls_set_context(self._tls)
        session.endpoint = endpoint(session.publish)
        try:
            session.client.connect(self._address.host, self._address.port, keepalive=_KEEPALIVE)
        except OSError as error:
            raise BrokerError(f"No MQTT broker answers at {self._address}: {error}.") from error
        session.flush()
        self._sessions.append(session)

    def run(self, done: Callable[[], bool]) -> None:
        """Let all sessions talk until ``done``, which is asked every tenth of a second."""
        asked = 0.0
        while True:
            now = time.monotonic()
            if now - asked > _POLL_SECONDS:
                asked = now
                if done():
                    return
            for key, ready in self._selector.select(_POLL_SECONDS):
                session: _Session = key.data
                if ready & selectors.EVENT_READ:
                    session.read()
                if ready & selectors.EVENT_WRITE:
                    session.client.loop_write()
                session.flush()
            if now - self._ticked > _TICK_SECONDS:
                self._ticked = now
                for session in self._sessions:
                    session.tick(now)

    def close(self) -> None:
        """End every session cleanly: no will is published."""
        for session in self._sessions:
            session.client.disconnect()
            session.flush()
        self._selector.close()


class _Session:
    """One paho client without a thread: what paho asks of an external loop, for one selector."""

    endpoint: Endpoint

    def __init__(
        self,
        selector: selectors.BaseSelector,
        client_id: str,
        subscriptions: Sequence[str],
        will: tuple[str, bytes] | None,
    ) -> None:
        self._selector = selector
        self._subscriptions = [(topic, _QOS) for topic in subscriptions]
        self._unsent = self._watched = (
            False  # whether there is something to write, and the selector looks for room
        )
        self._lost: float | None = None  # since when, in monotonic seconds
        self.client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv311, clean_session=True
        )
        client.on_socket_open = self._opened
        client.on_socket_close = self._closed
        client.on_socket_register_write = self._has_to_write
        client.on_socket_unregister_write = self._has_written
        client.on_connect = self._accepted
        client.on_subscribe = self._subscribed
        client.on_disconnect = self._disconnected
        client.on_message = self._message
        if will is not None:
            client.will_set(*will, qos=_QOS)

    def publish(self, topic: str, payload: bytes) -> Callable[[], bool]:
        if not self.client.is_connected():
            return lambda: True
        return self.client.publish(topic, payload, qos=_QOS).is_published

    def read(self) -> None:
        """Take in what has come: of what TLS has decrypted already the selector knows nothing."""
        self.client.loop_read()
        while isinstance(sock := self.client.socket(), ssl.SSLSocket) and sock.pending():
            self.client.loop_read()

    def flush(self) -> None:
        """Write what was published; what finds no room is written when the selector says so."""
        if self._unsent:
            self._unsent = False
            self.client.loop_write()
            sock = self.client.socket()
            if sock is not None and self.client.want_write():
                self._watched = True
                self._selector.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def tick(self, now: float) -> None:
        if self._lost is not None and now - self._lost > _RETRY_SECONDS:
            self._lost = now
            try:
                self.client.reconnect()
            except OSError:
                return
            self._lost = None
        elif self._lost is None:
            self.client.loop_misc()
            self.endpoint.tick(now)
        self.flush()

    # --- what paho calls

    def _opened(self, _client: Any, _userdata: Any, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watched = False
        self._selector.register(sock, selectors.EVENT_READ, self)

    def _closed(self, _client: Any, _userdata: Any, sock: Any) -> None:
        self._selector.unregister(sock)

    def _has_to_write(self, _client: Any, _userdata: Any, _sock: Any) -> None:
        self._unsent = True

    def _has_written(self, _client: Any, _userdata: Any, sock: Any) -> None:
        if self._watched:
            self._watched = False
            self._selector.modify(sock, selectors.EVENT_READ, self)

    def _accepted(self, client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            raise BrokerError(f"The broker refuses a session: {reason}.")
        client.subscribe(self._subscriptions)

    def _subscribed(self, _client: Any, _userdata: Any, _mid: Any, reasons: Any, _properties: Any) -> None:
        refused = [str(reason) for reason in reasons if reason.is_failure]
        if refused:
            raise BrokerError(f"The broker refuses a subscription: {refused[0]}.")
        self.endpoint.connected()

    def _disconnected(self, _client: Any, _userdata: Any, _flags: Any, _reason: Any, _properties: Any) -> None:
        self._lost = time.monotonic()

    def _message(self, _client: Any, _userdata: Any, message: Any) -> None:
        self.endpoint.received(message.topic, message.payload)
