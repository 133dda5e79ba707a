"""One MQTT session that heals itself: reconnects with backoff, resubscribes, hands everything to one queue.

Only MQTT 3.1.1 semantics are used. Nothing is retained, and an acknowledged publish is not taken for a delivered
one: whatever matters is repeated by the protocol above, so that publishing while offline is simply dropped.
"""

import queue
import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edge_fl.core.errors import BrokerError, ConfigError
from edge_fl.transport.interface import Connected, Disconnected, Event, Message

__all__ = ["BrokerAddress", "Connection"]

_QOS = 1
_IN_FLIGHT = 20  # publishes awaiting PUBACK: faster than one big PUBLISH, and pings still get through
_RETRY_SECONDS = (1, 30)  # first and longest pause between two attempts, times a factor of this session's own
_MOST_JITTER = 2.0


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "BrokerAddress":
        """Read ``mqtt://host[:port]``; raises ConfigError on anything else."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 1883
        except ValueError as error:
            raise ConfigError(f"'{url}' is no broker address: {error}.") from error
        unused = parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password
        if parts.scheme != "mqtt" or not host or unused:
            raise ConfigError(f"A broker address looks like mqtt://host:1883, not '{url}'.")
        return cls(host, port)

    def __str__(self) -> str:
        return f"mqtt://{self.host}:{self.port}"


class Connection:
    """One MQTT session (:class:`~edge_fl.transport.interface.Transport`).

    Parameters
    ----------
    address
        The broker.
    client_id
        The MQTT client id; a second session with the same id ends the first.
    subscriptions
        Topic filters, subscribed anew on every connect.
    will
        Topic and payload that the broker publishes when the session is lost.
    keepalive
        Seconds of silence after which either side pings.

    Attributes
    ----------
    events
        Everything that happens, in order.
    """

    def __init__(
        self,
        *,
        address: BrokerAddress,
        client_id: str,
        subscriptions: Sequence[str],
        will: tuple[str, bytes] | None = None,
        keepalive: int = 20,
    ) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._first: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._address, self._keepalive = address, keepalive
        self._subscriptions = [(topic, _QOS) for topic in subscriptions]
        self._client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv311, clean_session=True
        )
        client.max_inflight_messages_set(_IN_FLIGHT)
        self._factor = random.uniform(1, _MOST_JITTER)  # a fleet whose broker restarts does not come back at once
        shortest, longest = (self._factor * seconds for seconds in _RETRY_SECONDS)
        client.reconnect_delay_set(shortest, longest)  # type: ignore[arg-type]  # it takes fractions as well
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = lambda _c, _u, m: self.events.put(Message(m.topic, bytes(m.payload)))
        client.on_socket_open = _no_delay
        if will is not None:
            client.will_set(*will, qos=_QOS)

    def open(self, *, timeout: float) -> None:
        """Connect and subscribe for the first time, retrying for ``timeout`` seconds.

        Raises BrokerError when no broker answers in that time, or the broker refuses.
        """
        deadline, pause = time.monotonic() + timeout, 0.2
        while True:
            try:
                self._client.connect(self._address.host, self._address.port, keepalive=self._keepalive)
                break
            except (OSError, ValueError) as error:
                if time.monotonic() + self._factor * pause > deadline:
                    raise BrokerError(f"No MQTT broker answers at {self._address}: {error}.") from error
                time.sleep(self._factor * pause)
                pause = min(2 * pause, 5.0)
        self._client.loop_start()
        try:
            refusal = self._first.get(timeout=max(deadline - time.monotonic(), 1.0))
        except queue.Empty:
            refusal = "what listens there does not speak MQTT"
        if refusal is not None:
            self.close()
            raise BrokerError(f"No MQTT broker answers at {self._address}: {refusal}.")

    def publish(self, topic: str, payload: bytes) -> Callable[[], bool]:
        """Publish at QoS 1; dropped while disconnected.

        Returns
        -------
        Tells whether the message has left: the broker acknowledged it, or it was dropped.
        """
        if not self._client.is_connected():
            return lambda: True
        sent = self._client.publish(topic, payload, qos=_QOS)
        if sent.rc != mqtt.MQTT_ERR_SUCCESS:  # the connection broke just now: asking paho again would raise
            return lambda: True
        return sent.is_published

    def next(self, timeout: float) -> Event | None:
        """The next event, or None after ``timeout`` seconds."""
        try:
            return self.events.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the session cleanly: the will is not published."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._first.put(str(reason))
            self.events.put(Disconnected(str(reason)))
        else:
            self._client.subscribe(self._subscriptions)

    def _on_subscribe(self, _client: Any, _userdata: Any, _mid: Any, reasons: Any, _properties: Any) -> None:
        refused = [str(reason) for reason in reasons if reason.is_failure]
        if refused:
            self._first.put(f"it refuses a subscription ({refused[0]})")
            self.events.put(Disconnected(refused[0]))
        else:
            self._first.put(None)
            self.events.put(Connected())

    def _on_disconnect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self.events.put(Disconnected(str(reason)))


def _no_delay(_client: Any, _userdata: Any, sock: Any) -> None:
    """Small messages wait 40 ms for the previous packet's ACK otherwise."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
