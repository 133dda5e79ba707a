"""An MQTT broker inside the coordinator's process, so that a run needs nothing installed.

amqtt on a thread of its own. It moves 50 to 70 MB/s; production runs on Mosquitto. Retained messages are refused:
amqtt hands them to clients that may not read the topic, and edge-fl relies on none.
"""

import asyncio
import logging
import socket
import threading
from contextlib import ExitStack
from typing import Any

from amqtt.broker import Broker

from edge_fl.core.errors import BrokerError, PortError
from edge_fl.transport.connection import BrokerAddress

__all__ = ["EmbeddedBroker", "broker_of"]

_START_SECONDS = 20.0


class _Broker(Broker):
    """amqtt, which keeps no retained message here, and ends a session whose client begins another."""

    async def retain_message(self, *_args: Any, **_kwargs: Any) -> None:
        """Forget it."""

    async def _delete_session(self, client_id: str) -> None:
        """Forget a session that was replaced, and end its connection (MQTT-3.1.4-2), which amqtt leaves open and deaf.

        Its will is not published: the client lives, and its "gone" would be heard after its registration.
        """
        session, handler = self._sessions.get(client_id, (None, None))
        await super()._delete_session(client_id)
        if session is not None and handler is not None and session.transitions.is_connected():
            session.will_flag = False
            await handler.handle_connection_closed()


class EmbeddedBroker:
    """The broker and its thread.

    Parameters
    ----------
    host
        The interface to listen on.
    port
        The TCP port; 0 takes a free one.

    Attributes
    ----------
    address
        Where it listens.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 1883) -> None:
        self.address = BrokerAddress(host, _free_port(host, port))
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._broker: Broker | None = None
        self._thread = threading.Thread(target=self._run, name="embedded-broker", daemon=True)

    def __enter__(self) -> "EmbeddedBroker":
        """Start it; raises BrokerError if it does not come up."""
        for name in ("amqtt", "transitions"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or self._failure is not None:
            raise BrokerError(f"The embedded broker did not start at {self.address}: {self._failure}.")
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop it and wait for its thread."""
        if self._broker is not None:
            asyncio.run_coroutine_threadsafe(self._broker.shutdown(), self._loop).result(_START_SECONDS)
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
        bind = f"{self.address.host}:{self.address.port}"
        self._broker = _Broker(
            {
                "listeners": {"default": {"type": "tcp", "bind": bind, "max_connections": 0}},
                "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
            }
        )
        await self._broker.start()


def _free_port(host: str, port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortError(
                f"Port {port} of {host} is taken or forbidden ({error.strerror}); choose another with --port."
            ) from error
        taken: int = probe.getsockname()[1]
        return taken


def broker_of(text: str, port: int, stack: ExitStack) -> BrokerAddress:
    """The broker that ``embedded`` or ``mqtt://host:port`` names; the former listens on ``port`` until ``stack`` ends.

    Raises
    ------
    ConfigError
        When ``text`` names none.
    PortError, BrokerError
        When an embedded broker cannot listen.
    """
    return (
        stack.enter_context(EmbeddedBroker(port=port)).address if text == "embedded" else BrokerAddress.parse(text)
    )
