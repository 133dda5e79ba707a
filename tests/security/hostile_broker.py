"""Whoever runs the broker: hears everything, says it once more, and forges what a fleet would obey."""

import threading
import time
from collections import Counter

import msgspec

from edge_fl.core.content import Ref
from edge_fl.core.errors import FrameError
from edge_fl.identity.signing import Signer
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Message
from edge_fl.wire.messages import (
    PROTOCOL,
    Failed,
    Finished,
    Hello,
    Offer,
    Refused,
    Register,
    Registered,
    Task,
    Topics,
    decode_to_device,
    encode_message,
)
from edge_fl.wire.signed import decode_signed, encode_signed
from tests.security.keys import key

TOPICS = Topics()


class Operator(threading.Thread):
    """Says each control message once more, and after each of the coordinator's ``forged`` ones to the same device.

    Attributes
    ----------
    said
        How many messages of each kind.
    """

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(daemon=True)
        self._connection = Connection(address=address, client_id="operator", subscriptions=[f"{TOPICS.root}/#"])
        self._connection.open(timeout=30)
        self._signer = Signer(key(7), time.time_ns() // 1_000_000)
        self._own, self._end = set[bytes](), threading.Event()
        self.said: Counter[str] = Counter()

    def run(self) -> None:
        while not self._end.is_set():
            event = self._connection.next(0.1)
            if not isinstance(event, Message) or event.payload in self._own or "/chunk/" in event.topic:
                continue
            self._say("replayed", event.topic, event.payload)
            if event.topic.startswith(f"{TOPICS.root}/up/"):
                self._forge_upwards(event.topic)
            elif event.topic != TOPICS.all:
                self._forge_downwards(event.topic, event.payload)

    def stop(self) -> None:
        self._end.set()
        self.join(10)
        self._connection.close()

    def _say(self, kind: str, topic: str, payload: bytes) -> None:
        self._own.add(payload)
        self.said[kind] += 1
        self._connection.publish(topic, payload)

    def _forge_upwards(self, topic: str) -> None:
        register = Register(protocol=PROTOCOL, agent="forged", runtime="none", samples=2**31 - 1)
        for message in (register, Offer("run", 1, Ref("0" * 64, 9)), Failed("run", 1, "1", "forged")):
            self._say("unsigned", topic, encode_message(message))
            self._say("signature", topic, self._signer.seal(topic, message))

    def _forge_downwards(self, topic: str, payload: bytes) -> None:
        """What would end a device, take it over, or have it train something else."""
        try:
            honest = decode_to_device(decode_signed(payload).body)
        except FrameError:
            return
        forged = [Refused("forged", "forged"), Hello("other"), Finished("other", 1)]
        if isinstance(honest, Registered):
            forged += [msgspec.structs.replace(honest, run="other"), Finished(honest.run, 1)]
        if isinstance(honest, Task):
            forged += [msgspec.structs.replace(honest, lr=1e9)]
        for message in forged:
            self._say("unsigned", topic, encode_message(message))
            self._say("signature", topic, self._signer.seal(topic, message))
        changed = msgspec.structs.replace(decode_signed(payload), body=encode_message(forged[-1]))
        self._say("changed", topic, encode_signed(changed))
