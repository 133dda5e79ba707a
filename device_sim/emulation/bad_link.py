"""A proxy in front of a broker through which clients reach it as over a bad network.

What TCP would mend is mended here too: a lost message is acknowledged to its sender, as a broker does whose queue then
overflows. Topics are left alone, for a broker answers for them; payloads are what may be damaged.
"""

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from device_sim.emulation.lane import Lane
from device_sim.emulation.mqtt_packets import Publish, Splitter, puback, publish_of
from device_sim.simulation.links import Link
from edge_fl.core.errors import BrokerError, ConfigError
from edge_fl.transport.address import BrokerAddress

__all__ = ["BadLink", "Faults"]

_log = logging.getLogger(__name__)
_READ = 1 << 16  # bytes at a time
_START_SECONDS = 10.0


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to messages, each way.

    ``drop``, ``duplicate``, ``delay`` and ``corrupt`` are shares of the messages in [0, 1]; a delayed one comes up to
    ``delay_seconds`` later, behind others that were sent after it.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    corrupt: float = 0.0
    delay_seconds: float = 1.0

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "delay", "corrupt"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"The share of messages to {name} is in [0, 1], not {getattr(self, name)}.")


_NO_FAULTS = Faults()


class BadLink:
    """The proxy and its thread.

    Parameters
    ----------
    broker
        What lies behind it; it may come and go.
    faults
        What befalls messages.
    link
        What every connection has of speed, latency, jitter and loss; None for as fast as it goes.
    seed
        Keys what befalls which.

    Attributes
    ----------
    address
        Where clients connect to.
    carried
        Bytes that have come to it, ``up`` to the broker and ``down`` from it.
    """

    def __init__(
        self, broker: BrokerAddress, faults: Faults = _NO_FAULTS, *, link: Link | None = None, seed: int = 0
    ) -> None:
        self.address = BrokerAddress("127.0.0.1", 0)
        self._broker, self._faults, self._link = broker, faults, link
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._stalled_until = 0.0
        self.carried: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bad-link", daemon=True)

    def __enter__(self) -> "BadLink":
        """Listen."""
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.address = BrokerAddress("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    def __exit__(self, *_exception: object) -> None:
        """Close every connection."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def stall(self, seconds: float) -> None:
        """Let nothing through for so long; what is sent meanwhile comes afterwards."""
        self._stalled_until = time.monotonic() + seconds

    def reset(self) -> None:
        """Break off every connection."""
        self._call(self._break_off())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_SECONDS)
        except TimeoutError as error:
            raise BrokerError(f"The link to {self._broker} does not answer.") from error

    async def _close(self) -> None:
        self._server.close()
        await self._break_off()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _break_off(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connect(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(self._broker.host, self._broker.port)
        except OSError as error:
            _log.debug("no way to %s: %s", self._broker, error)
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        link, up, down = self._link, None, None
        if link is not None:
            up, down = (Lane(link, speed, self._random) for speed in (link.up, link.down))
        await asyncio.gather(
            self._carry("up", up, reader, there_writer, writer),
            self._carry("down", down, there_reader, writer, there_writer),
        )
        self._writers -= {writer, there_writer}

    async def _carry(
        self,
        way: str,
        lane: Lane | None,
        reader: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
    ) -> None:
        """Carry packets one way until either end is gone; ``back`` leads to their sender."""
        packets = Splitter()
        try:
            while data := await reader.read(_READ):
                self.carried[way] += len(data)
                for packet in packets.feed(data):
                    if lane is not None:
                        await lane.enter(len(packet))
                    while (left := self._stalled_until - time.monotonic()) > 0:
                        await asyncio.sleep(left)
                    if lane is None:
                        self._deliver(packet, to, back)
                    else:
                        lane.leave(len(packet), partial(self._deliver, packet, to, back))
                await to.drain()
            if lane is not None:
                await lane.empty()
        except (ConnectionError, ValueError) as error:
            _log.debug("a connection to %s ended: %s", self._broker, error)
        finally:
            to.transport.abort()
            back.transport.abort()

    def _deliver(self, packet: bytes, to: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
        publish = publish_of(packet)
        if publish is None:
            to.write(packet)
        else:
            self._pass_on(packet, publish, to, back)

    def _pass_on(
        self, packet: bytes, publish: Publish, to: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        faults, chance = self._faults, self._random.random
        if chance() < faults.drop:
            back.write(puback(publish.identifier))
            return
        if chance() < faults.corrupt and len(packet) > publish.payload:
            damaged = bytearray(packet)
            damaged[self._random.randrange(publish.payload, len(packet))] ^= self._random.randint(1, 255)
            packet = bytes(damaged)
        for _ in range(2 if chance() < faults.duplicate else 1):
            if chance() < faults.delay:
                self._loop.call_later(chance() * faults.delay_seconds, to.write, packet)
            else:
                to.write(packet)
