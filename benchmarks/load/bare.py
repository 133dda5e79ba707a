"""What the coordinator is held against: a plain paho program that moves the same bytes, and nothing else.

It publishes the chunks of a model to each device, each of which publishes an update back as soon as it has them all.
Both ends count what arrives; nobody asks, checks or keeps anything. In its other kind of round both ends take the
SHA-256 of what arrives, too, and hold it against the one in its topic: the least that knowing content by its hash can
cost.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from device_sim.emulation.sessions import Publish
from edge_fl.core.errors import RunError
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.transfer import cut

__all__ = ["BareDevice", "Moved", "main"]

_ROUND_SECONDS = 600.0
_DOWN, _UP, _PLAIN = "bare/down", "bare/up", "plain"


@dataclass(frozen=True)
class Moved:
    """What a round took: ``seconds`` and ``cpu`` (of this process), from the first chunk to the last update."""

    seconds: float
    cpu: float


class BareDevice:
    """A device's part, on whatever session is given.

    Parameters
    ----------
    client
        Its name.
    model
        Bytes that come a round.
    update
        What goes back.
    publish
        Publishes in its name, which does no more than paho.
    """

    def __init__(self, client: str, *, model: int, update: bytes, publish: Publish) -> None:
        self._up = f"{_UP}/{client}/{hashlib.sha256(update).hexdigest()}"
        self._model, self._update, self._publish = model, update, publish
        self._arrived, self._hash = 0, hashlib.sha256()

    @staticmethod
    def subscription(client: str) -> str:
        """The topic filter of its session."""
        return f"{_DOWN}/{client}/#"

    def is_mine(self, topic: str) -> bool:
        """Whether a message is for it."""
        return topic.startswith(_DOWN)

    def received(self, topic: str, payload: bytes) -> None:
        """Count a chunk, and hash it where its topic says what comes; answer when all are there.

        Raises RunError when something else came.
        """
        self._arrived += len(payload)
        digest = topic.rpartition("/")[2]
        if digest != _PLAIN:
            self._hash.update(payload)
        if self._arrived == self._model:
            if digest not in {_PLAIN, self._hash.hexdigest()}:
                raise RunError(f"Content {digest[:12]} arrived as something else.")
            self._arrived, self._hash = 0, hashlib.sha256()
            self._publish(self._up, self._update)


def main(pipe: Connection, address: BrokerAddress, model: int, update: int) -> None:
    """Make a round whenever the pipe names clients to make it with, and whether to hash, until it says None."""
    arrived, complete = _Count(), threading.Event()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="bare", protocol=mqtt.MQTTv311)
    client.on_message = lambda _c, _u, message: arrived.add(message.topic, message.payload, complete.set)
    ready = threading.Event()
    client.on_subscribe = lambda *_: ready.set()
    if address.encrypted:
        client.tls_set_context(address.access.context())
    client.connect(address.host, address.port)
    client.loop_start()
    client.subscribe(f"{_UP}/#", qos=1)
    ready.wait()
    content = os.urandom(model)
    chunks, digest = cut(content), hashlib.sha256(content).hexdigest()
    while (coming := pipe.recv()) is not None:
        clients, arrived.hashes = coming
        kind = digest if arrived.hashes else _PLAIN
        arrived.missing = update * len(clients)
        complete.clear()
        begun, cpu = time.perf_counter(), time.process_time()
        for name in clients:
            for index, chunk in enumerate(chunks):
                client.publish(f"{_DOWN}/{name}/{index}/{kind}", chunk, qos=1)
        if not complete.wait(_ROUND_SECONDS):
            raise RunError(f"{arrived.missing} bytes were lost.")
        pipe.send(Moved(time.perf_counter() - begun, time.process_time() - cpu))
    client.disconnect()
    client.loop_stop()


class _Count:
    """Bytes still to come, and whether to hash them; one that is not what its topic says counts for nothing."""

    def __init__(self) -> None:
        self.missing, self.hashes = 0, False

    def add(self, topic: str, content: bytes | bytearray, complete: Callable[[], Any]) -> None:
        if self.hashes and hashlib.sha256(content).hexdigest() != topic.rpartition("/")[2]:
            return
        self.missing -= len(content)
        if self.missing == 0:
            complete()
