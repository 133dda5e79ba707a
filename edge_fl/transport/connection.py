"""One MQTT session that heals itself: reconnects with backoff, resubscribes, hands everything to one queue.

Of a cluster it goes round the nodes: after a session has ended, or no node has answered, it tries the next one.

Only MQTT 3.1.1 semantics are used. Nothing is retained, and an acknowledged publish is not taken for a delivered
one: whatever matters is repeated by the protocol above, so that publishing while offline is simply dropped.
"""

import logging
import os
import queue
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edge_fl.core.errors import BrokerError, LoginRefusedError, SubscriptionRefusedError
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.inbox import Inbox
from edge_fl.transport.interface import Connected, Disconnected, Event, Posted

__all__ = ["Connection"]

_log = logging.getLogger(__name__)

_QOS = 1
_MOST_QUEUED = 10_000  # publishes that wait to be sent; of a device that reads nothing, the rest is dropped
_IN_FLIGHT = 20  # publishes awaiting PUBACK: faster than one big PUBLISH, and pings still get through
_RETRY_SECONDS = (1, 30)  # first and longest pause between two attempts, times a factor of this session's own
_MOST_JITTER = 2.0
_SHORT_SECONDS = 10.0  # a session that ends so soon may be one that two devices take from each other
_MANY_SHORT = 5  # such sessions in a row, after which the first pause grows
_LONGEST_FIRST = 5.0  # seconds to which it grows, times the factor: a bad link drops sessions, too
_MOST_EARLY_ENDS = 2  # with TLS: so many sessions that end before any answer are taken for a refusal
_ALERT = re.compile(r"alert [a-z ]*\b(certificate|ca)\b[a-z ]*")
_TIMES, _NAMES = (9, 10), (62, 64)  # OpenSSL's X509_V_ERR_...: not yet valid, expired; host name, IP address


class Connection:
    """One MQTT session (:class:`~edge_fl.transport.interface.Transport`).

    Parameters
    ----------
    address
        The broker, and what it lets this session in by.
    client_id
        The MQTT client id, in which a tilde stands for a dot, for not every broker takes dots; a second session with
        the same id ends the first.
    subscriptions
        Topic filters, subscribed anew on every connect.
    optional
        Further ones, which the broker may refuse.
    will
        Topic and payload that the broker publishes when the session is lost.
    keepalive
        Seconds of silence after which either side pings.

    Raises
    ------
    ConfigError
        When certificates or keys of ``address.access`` cannot be used.
    """

    def __init__(
        self,
        *,
        address: BrokerAddress,
        client_id: str,
        subscriptions: Sequence[str],
        optional: Sequence[str] = (),
        will: tuple[str, bytes] | None = None,
        keepalive: int = 20,
    ) -> None:
        self._inbox = Inbox()
        self._first: queue.SimpleQueue[BrokerError | None] = queue.SimpleQueue()
        self._nodes, self._keepalive = address.nodes, keepalive
        self._at = random.randrange(len(self._nodes))  # a fleet spreads over a cluster
        self._heard = self._closed = False  # whether it was ever subscribed, and whether nobody wants it any more
        self._subscriptions = [(topic, _QOS) for topic in (*subscriptions, *optional)]
        self._needed = len(subscriptions)
        self._waits = False  # whether it was said that the first connection takes long
        self._deadline = 0.0  # of the first connection
        self._fails = 0  # attempts in a row that reached nobody
        self._early_ends = 0  # sessions that ended; only those before the first answer matter
        self._ended_by = address  # the last of them
        self._answered = False  # whether the broker said anything since the last end
        self._refused = False  # whether that was a no
        self._client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id.replace(".", "~"),
            protocol=mqtt.MQTTv311,
            clean_session=True,
            transport="websockets" if address.scheme == "wss" else "tcp",
        )
        _open_doors(client, address)
        client.max_inflight_messages_set(_IN_FLIGHT)
        self._factor = random.uniform(1, _MOST_JITTER)  # a fleet whose broker restarts does not come back at once
        self._began: float | None = None  # when the session did that is under way
        self._short_sessions = 0  # in a row
        self._pace()
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.max_queued_messages_set(_MOST_QUEUED)
        client.on_message = lambda _c, _u, m: self._inbox.put_message(m.topic, bytes(m.payload))
        client.on_socket_open = _no_delay
        client.on_log = self._on_log
        if will is not None:
            client.will_set(*will, qos=_QOS)

    def open(self, *, timeout: float) -> None:
        """Connect and subscribe for the first time, retrying for ``timeout`` seconds.

        Raises BrokerError when no broker answers in that time, or at once when one refuses (LoginRefusedError where
        it does not know the user or the password, SubscriptionRefusedError where it refuses a topic) or is not to be
        trusted.
        """
        self._deadline = deadline = time.monotonic() + timeout
        pause, tried = 0.2, 0
        while True:
            try:
                self._client.connect(self._address.host, self._address.port, keepalive=self._keepalive)
                break
            except (OSError, ValueError) as error:
                if isinstance(error, ssl.SSLError) and not _is_broken_off(error):
                    raise BrokerError(_distrusted(self._address, error)) from error
                self._tell_waiting(_unanswered(self._address, error))
                if time.monotonic() + self._factor * pause > deadline:
                    raise BrokerError(_unanswered(self._address, error)) from error
                self._at, tried = self._at + 1, tried + 1
                if tried % len(self._nodes) == 0:  # all of them
                    time.sleep(self._factor * pause)
                    pause = min(2 * pause, 5.0)
        self._client.loop_start()
        try:
            refusal = self._first.get(timeout=max(deadline - time.monotonic(), 1.0))
        except queue.Empty:
            refusal = BrokerError(self._silence)
        if refusal is not None:
            self.close()
            raise refusal

    def _tell_waiting(self, why: str) -> None:
        """Say once that the first connection takes long."""
        left = self._deadline - time.monotonic()
        if not self._waits and left > 1:
            self._waits = True
            _log.info("waiting for a broker, for up to %.0f s: %s", left, why)

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
        return self._inbox.get(timeout)

    def post(self, item: Any) -> None:
        """Have :meth:`next` give ``item`` in turn; any thread may."""
        self._inbox.put(Posted(item))

    def close(self) -> None:
        """End the session cleanly: the will is not published."""
        self._closed = True
        self._client.disconnect()
        self._client.loop_stop()

    @property
    def _address(self) -> BrokerAddress:
        """The node that the session is with, or is to be."""
        return self._nodes[self._at % len(self._nodes)]

    def _connect_anew(self) -> None:
        """Have paho try the next node, or the only one, once it has waited."""
        if not self._closed:
            self._at += 1
            self._client.connect_async(self._address.host, self._address.port, keepalive=self._keepalive)

    def _end_session(self) -> int:
        """How many short sessions there were in a row, with the one that has ended."""
        short = 0
        if self._began is not None:
            short = self._short_sessions + 1 if time.monotonic() - self._began < _SHORT_SECONDS else 0
            self._began, self._short_sessions = None, short
            self._pace()
        return short

    def _on_connect_fail(self, _client: Any, _userdata: Any) -> None:
        self._fails += 1
        if self._fails >= len(self._nodes):  # no other device took the session: no broker was up
            self._short_sessions = 0
        self._connect_anew()

    def _pace(self) -> None:
        """Have paho wait before it connects anew, first the shorter pause, then ever longer, until a session begins.

        Called between sessions alone: it makes paho begin with the shorter pause again.
        """
        first, longest = _RETRY_SECONDS
        most = longest if self._heard else min(longest, _LONGEST_FIRST)  # whoever opens the session waits
        grown = first * 2.0 ** max(self._short_sessions - _MANY_SHORT, 0)
        pauses = self._factor * max(first, min(grown, _LONGEST_FIRST)), self._factor * max(first, most)
        self._client.reconnect_delay_set(*pauses)  # type: ignore[arg-type]  # it takes fractions as well

    def _on_connect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._answered, self._refused, self._fails = True, bool(reason.is_failure), 0
        if reason.is_failure:
            self._first.put(
                LoginRefusedError(
                    f"The broker at {self._address} refuses this client ({str(reason).lower()}): {self._credential}."
                )
            )
            self._inbox.put(Disconnected(str(reason)))
        else:
            self._began = time.monotonic()
            self._client.subscribe(self._subscriptions)

    def _on_subscribe(self, _client: Any, _userdata: Any, _mid: Any, reasons: Any, _properties: Any) -> None:
        refused = [str(reason) for reason in reasons[: self._needed] if reason.is_failure]
        if refused:
            self._first.put(
                SubscriptionRefusedError(
                    f"The broker at {self._address} refuses a subscription ({refused[0].lower()}): see --fleet, and "
                    "the broker's access list."
                )
            )
            self._inbox.put(Disconnected(refused[0]))
            if self._heard:  # as a cluster may that has lost a node: a session that hears nothing is none
                self._end_session()
                self._connect_anew()
        else:
            self._heard = True
            self._first.put(None)
            self._inbox.put(Connected())

    def _on_disconnect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._note_end(reason)
        self._connect_anew()

    def _note_end(self, reason: Any) -> None:
        answered, refused = self._answered, self._refused
        self._answered = self._refused = False
        short = self._end_session()
        self._early_ends, self._ended_by = self._early_ends + 1, self._address
        # Not every broker says whom it refuses. Without TLS, it may be a proxy whose broker is still to come.
        if self._address.encrypted and self._early_ends == _MOST_EARLY_ENDS:
            self._first.put(BrokerError(self._silence))
        if not self._heard:  # whoever opens this session hears of it there
            if not answered and not self._closed:
                self._tell_waiting(self._silence)
            return
        if refused:  # which is told already
            return
        # paho names an end without a reason from the broker "Unspecified error", which reads as a fault of ours
        said = "it was closed" if reason == "Unspecified error" else str(reason)
        if not answered and self._address.encrypted:
            said += f" before the broker answered: {self._credential}"
        self._inbox.put(Disconnected(said, short))

    def _on_log(self, _client: Any, _userdata: Any, level: int, text: str) -> None:
        """A broker that refuses a certificate says so after the handshake (TLS 1.3), and paho only here."""
        if level == mqtt.MQTT_LOG_ERR and (alert := _ALERT.search(text.lower())):
            self._first.put(
                BrokerError(
                    f"The broker at {self._address} refuses this client's certificate, or misses one "
                    f"({alert[0].strip()}): {self._credential}."
                )
            )

    @property
    def _silence(self) -> str:
        """What came of a first connection that nobody answered."""
        if self._early_ends:
            likely = self._credential if self._address.encrypted else "it may want mqtts:// (TLS)"
            return (
                f"What listens at {self._ended_by} ends sessions before it answers: {likely}, or it is a proxy whose "
                "broker is down."
            )
        otherwise = "" if self._address.encrypted else ", or wants mqtts:// (TLS)"
        return f"No MQTT broker answers at {self._address}: what listens there does not speak MQTT{otherwise}."

    @property
    def _credential(self) -> str:
        """What to look at where a broker does not let this side in."""
        access = self._address.access
        if access.user is not None:
            return f"user '{access.user}' or its password may be wrong; see --user and --password-file"
        if access.signing is not None:
            return (
                "the identity may be revoked, expired or another fleet's; have a new one made, unless this is the "
                "enrol listener's port"
            )
        if access.cert is not None:
            return "it may not take this certificate; see --cert and --key"
        return "it may want a certificate or a password; see --identity, --cert, --user and --password-file"


def _open_doors(client: mqtt.Client, address: BrokerAddress) -> None:
    access = address.access
    if address.encrypted:
        client.tls_set_context(access.context())
        client.tls_insecure_set(access.pinned)
    if address.scheme == "wss":
        client.ws_set_options(path=address.path)
    if access.user is not None:
        client.username_pw_set(access.user, access.password)


def _unanswered(address: BrokerAddress, error: OSError | ValueError) -> str:
    """What came of the last attempt to connect."""
    if address.encrypted and _is_broken_off(error):
        return f"What listens at {address} breaks off TLS: it may be no TLS port, or a proxy whose broker is down."
    return f"No MQTT broker answers at {address}: {error}; see that one runs there, and the host and port."


def _is_broken_off(error: OSError | ValueError) -> bool:
    """Whether the other side left a handshake without a word."""
    if isinstance(error, ssl.SSLError):  # its own class for that is not what every OpenSSL raises
        return isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING"
    return isinstance(error, ConnectionResetError) or (
        isinstance(error, TimeoutError) and "handshake" in str(error)
    )


def _distrusted(address: BrokerAddress, error: ssl.SSLError) -> str:
    """Why no TLS session came to be, and what to do."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        said = (error.reason or str(error)).replace("_", " ").lower()
        return (
            f"What listens at {address} and this client agree on no TLS ({said}): is that the broker's TLS port?"
        )
    said, code = error.verify_message.rstrip("."), error.verify_code
    where = f"The certificate of {address}"
    if code in _TIMES:
        return f"{where} does not hold now ({said}): see this machine's clock, or have the broker's renewed."
    if code in _NAMES:
        return f"{where} is another host's ({said}): connect by a name that it has."
    if address.access.signing is not None and address.access.ca == address.access.signing:
        return (
            f"{where} is not of the fleet of '{address.access.signing}' ({said}): take an identity of the broker's "
            "fleet."
        )
    trusted = "an authority of this system" if address.access.ca is None else f"'{address.access.ca}'"
    return (
        f"{where} does not come from {trusted} ({said}): give this side its --identity, or name the authority's file "
        "with --ca."
    )


def _no_delay(_client: Any, _userdata: Any, sock: Any) -> None:
    """Small messages wait 40 ms for the previous packet's ACK otherwise."""
    with socket.socket(fileno=os.dup(sock.fileno())) as same:  # paho's WebSocket is no socket itself
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
