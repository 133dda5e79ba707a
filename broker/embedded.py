"""An MQTT broker inside the coordinator's process, so that a run needs nothing installed.

amqtt on a thread of its own. It moves 50 to 70 MB/s; production runs on Mosquitto. Retained messages are refused:
amqtt hands them to clients that may not read the topic, and edge-fl relies on none. Where its doors ask who comes
(:mod:`broker.doors`), a client publishes and reads its own topics alone.
"""

import asyncio
import secrets
import socket
import ssl
import threading
from contextlib import suppress
from logging import CRITICAL, getLogger
from typing import Any, Literal, Protocol

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import Action
from amqtt.errors import AMQTTError, MQTTError, NoDataError
from amqtt.mqtt.connack import NOT_AUTHORIZED, ConnackPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.session import Session

from broker.doors import OF_THE_HOUSE, Doors, Entrance, Login
from broker.turned_away import TurnedAway
from edge_fl.core.errors import BrokerError, PortError, printable
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import Topics, within

__all__ = ["EmbeddedBroker"]

_START_SECONDS, _STOP_SECONDS = 20.0, 5.0
_CONNECT_SECONDS = 10.0  # who has connected says who it is in this time
_LARGEST_MESSAGE = 16 << 20  # bytes; a chunk has 256 KiB


class Fence(Protocol):
    """Which topics are whose: those of a fleet, or of the enrol listener."""

    def writable(self, client: str) -> tuple[str, ...]:
        """The filters of what a client may publish."""

    def readable(self, client: str) -> tuple[str, ...]:
        """The filters of what a client may subscribe to."""


class _TooLargeError(Exception):
    """A client announced a message of more bytes than it may send."""


def _host_of(writer: Any) -> str:
    return str((writer.get_peer_info() or ("nowhere",))[0])


class _BoundedReader(StreamReaderAdapter):
    """Ends a session that announces a larger message than edge-fl has, before memory is taken for it, and counts it."""

    def __init__(self, reader: asyncio.StreamReader, largest: int, host: str, turned_away: TurnedAway) -> None:
        super().__init__(reader)
        self._largest, self._host, self._turned_away = largest, host, turned_away

    async def read(self, n: int = -1) -> bytes:
        """``n`` bytes; _TooLargeError, on which amqtt closes the session, where ``n`` is too large."""
        if n > self._largest:
            said = f"A client from {self._host} announced a message of {n} bytes."
            self._turned_away.add("", "flood", said)
            raise _TooLargeError(f"a message of {n} bytes")
        data: bytes = await super().read(n)
        return data


def _counting(turned_away: TurnedAway) -> type[ssl.SSLObject]:
    """An end of a TLS session that counts its handshake if that fails; asyncio tells nobody."""

    class Counting(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                turned_away.add("", "handshake", f"TLS with a client failed: {_why(error)}.")
                raise

    return Counting


def _why(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or "unknown").replace("_", " ").lower()


class _Broker(Broker):
    """amqtt, which keeps no retained message here, and ends a session whose client begins another.

    amqtt would end the session of a client id before it asks who comes with that id, and would publish a will to any
    topic. So both are looked at first, and nobody is let in under another's id.
    """

    def __init__(
        self, config: dict[str, Any], doors: Entrance, topics: Fence, largest: int, turned_away: TurnedAway
    ) -> None:
        super().__init__(config)
        self._doors, self._topics, self._largest = doors, topics, largest
        self._version = doors.version()  # before the list is read: a later list must not pass for this one
        self._tls = doors.context()
        self._turned_away = turned_away
        if self._tls is not None:
            self._tls.sslobject_class = _counting(turned_away)

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """Hear a client, with a bound on its messages."""
        writing = StreamWriterAdapter(writer)
        bounded = _BoundedReader(reader, self._largest, _host_of(writing), self._turned_away)
        await self._client_connected(listener_name, bounded, writing)

    def _create_ssl_context(self, _listener: Any) -> ssl.SSLContext | None:
        return self._tls

    async def _initialize_client_session(
        self, reader: Any, writer: Any, *_remote: Any
    ) -> tuple[BrokerProtocolHandler, Session]:
        """Read CONNECT, and find out who comes, before anything is done for that client."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                handler, session = await BrokerProtocolHandler.init_from_connect(
                    reader, writer, self.plugins_manager
                )
        except (AMQTTError, MQTTError, NoDataError, TimeoutError, _TooLargeError) as error:
            await writer.close()
            raise AMQTTError(f"no CONNECT came: {error}") from error
        session.clean_session = True  # nothing waits for who is not there
        session.parent = 0
        if self._tls is not None and (version := self._doors.version()) != self._version:
            self._version = version
            with suppress(OSError):  # of half a file there is a next version
                self._tls.load_verify_locations(self._doors.ca)
            await writer.close()  # it was looked at by yesterday's list; it comes again in a moment
            raise AMQTTError("the list of revoked certificates has changed")
        if self._doors.asks:
            user, session.username = session.username, await self._identity(session, writer)
            if session.username is None:
                who = "A client" if user is None else f"'{printable(user, 100)}'"
                said = f"{who} from {_host_of(writer)} had no {self._doors.wanted}."
                self._turned_away.add("", "login", said)
                await ConnackPacket.build(0, NOT_AUTHORIZED).to_stream(writer)
                await writer.close()
                raise AMQTTError("a stranger is not let in")
            if session.username != OF_THE_HOUSE:
                session.client_id = session.username if self._doors.one_session else secrets.token_hex(16)
        if session.will_flag and not await self._topic_filtering(session, session.will_topic, Action.PUBLISH):
            session.will_flag = False
        await self._delete_session(session.client_id)
        return handler, session

    async def _identity(self, session: Session, writer: Any) -> str | None:
        ssl_object = writer.get_ssl_info()
        certificate = None if ssl_object is None else ssl_object.getpeercert()
        host = (writer.get_peer_info() or (None,))[0]
        login = Login(session.username, session.password, certificate, host)
        return await asyncio.to_thread(self._doors.identity, login)

    async def _authenticate(self, _session: Session, _listener: Any) -> bool:
        """Who has a session was asked before."""
        return True

    async def _topic_filtering(self, session: Session, topic: str, action: Action) -> bool:
        """Whether the topic is the client's; what it receives it was let subscribe to."""
        if not self._doors.asks or session.username == OF_THE_HOUSE or action is Action.RECEIVE:
            return True
        name = str(session.username)
        own = self._topics.writable if action is Action.PUBLISH else self._topics.readable
        if within(topic, own(name)):
            return True
        self._turned_away.add(name, "topic", f"It may not {action.name.lower()} on '{printable(topic, 100)}'.")
        return False

    async def retain_message(self, *_args: Any, **_kwargs: Any) -> None:
        """Forget it."""

    async def _delete_session(self, client_id: str) -> None:
        """Forget a session that was replaced, and end its connection (MQTT-3.1.4-2), which amqtt leaves open and deaf.

        Its will is not published: the client lives, and its "gone" would be heard after its registration.
        """
        while client_id in self._sessions:  # another may come while one is ended
            session, handler = self._sessions[client_id]
            await super()._delete_session(client_id)
            if session.transitions.is_connected():
                session.will_flag = False
                await handler.handle_connection_closed()

    async def _client_message_loop(self, client_session: Session, handler: BrokerProtocolHandler) -> None:
        """Hear a client, unless another session of its id began before this one could be ended."""
        if self._sessions.get(client_session.client_id) != (client_session, handler):
            client_session.will_flag = False
            await handler.handle_connection_closed()
        await super()._client_message_loop(client_session, handler)


class EmbeddedBroker:
    """The broker and its thread.

    Parameters
    ----------
    host
        The interface to listen on.
    port
        The TCP port; 0 takes a free one.
    doors
        Who may come in; None for whoever reaches it, unencrypted.
    topics
        Those of the fleet, of which a client that shows who it is has its own.
    largest
        The most bytes of a message.

    Attributes
    ----------
    listens
        Where it listens, for people.
    address
        How this machine's coordinator reaches it.
    turned_away
        Who did not come in, or wanted another's topic.

    Raises
    ------
    ConfigError
        When files of ``doors`` cannot be used.
    PortError
        When the port is taken.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 1883,
        doors: Entrance | None = None,
        topics: Fence | None = None,
        largest: int = _LARGEST_MESSAGE,
    ) -> None:
        self._doors: Entrance = doors or Doors()
        self._topics: Fence = topics or Topics()
        self._largest = largest
        self.turned_away = TurnedAway()
        scheme: Literal["mqtt", "mqtts"] = "mqtt" if self._doors.cert is None else "mqtts"
        self._doors.context()
        self.listens = BrokerAddress(host, _free_port(host, port), scheme)
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.address = BrokerAddress(near, self.listens.port, scheme, access=self._doors.access())
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._broker: Broker | None = None
        self._thread = threading.Thread(target=self._run, name="embedded-broker", daemon=True)

    def __enter__(self) -> "EmbeddedBroker":
        """Start it; raises BrokerError if it does not come up."""
        for name in (
            "amqtt",
            "transitions",
            "asyncio",
        ):  # the last warns of each write to a session that has ended
            getLogger(name).setLevel(CRITICAL)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or self._failure is not None:
            raise BrokerError(f"The embedded broker did not start at {self.listens}: {self._failure}.")
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop it and wait for its thread."""
        if self._broker is not None:
            with suppress(TimeoutError):  # of a client that floods amqtt takes every message before it ends
                asyncio.run_coroutine_threadsafe(self._broker.shutdown(), self._loop).result(_STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._start())
        except Exception as error:  # whatever amqtt raises is told by __enter__
            self._failure = error
        self._ready.set()
        if self._failure is None:
            self._loop.run_forever()

    async def _start(self) -> None:
        bind = f"{self.listens.host}:{self.listens.port}"
        listener = {"type": "tcp", "bind": bind, "max_connections": 0, "ssl": self._doors.cert is not None}
        self._broker = _Broker(
            {"listeners": {"default": listener}, "plugins": {}},
            self._doors,
            self._topics,
            self._largest,
            self.turned_away,
        )
        await self._broker.start()


def _free_port(host: str, port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortError(f"Port {port} of {host} is taken or forbidden ({error.strerror}).") from error
        taken: int = probe.getsockname()[1]
        return taken
