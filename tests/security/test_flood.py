"""An admitted client that floods the coordinator: the honest run ends in its own bits, and the flood is counted."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from edge_fl.agent.envelope import open_envelope
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref
from edge_fl.core.errors import FrameError
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Message
from edge_fl.wire.messages import PROTOCOL, Offer, Register, Topics, Want
from tests.security.conftest import ServedFleet
from tests.security.test_fleet import open_run, run, same, weights
from tests.security.test_large_message import counted, until

__all__ = ["open_run"]  # a fixture

TOPICS = Topics()
_MOST_RESIDENT = 900_000  # kB; what waits of one sender has 64 MB at the most


class Flooder(threading.Thread):
    """Sends as fast as its broker takes it: garbage, foreign chunks, offers, registrations, wants, large messages."""

    def __init__(self, address: BrokerAddress, state: Path) -> None:
        super().__init__(daemon=True)
        down = TOPICS.down("flood")
        self._envelope = open_envelope(address.access.signing, state)
        self._connection = Connection(address=address, client_id="flood", subscriptions=[TOPICS.all, down])
        self._end = threading.Event()
        self.sent = 0

    def run(self) -> None:
        up, ref = TOPICS.up("flood"), Ref("0" * 64, 99)
        messages = [
            Register(protocol=PROTOCOL, agent="f", runtime="none", samples=1),
            Offer("no-run", 1, ref),
            Want("2" * 64, (0,)),
        ]
        garbage = [*[(up, bytes([255]) * 50)] * 20, (TOPICS.chunk(up, "1" * 64, 3), bytes(1000))]
        self._connection.open(timeout=120)
        while not self._end.is_set():
            self._listen()
            payloads = garbage + [(up, self._envelope.seal(up, message)) for message in messages]
            if self.sent % 2400 == 0:
                self._connection.publish(up, bytes(3_000_000))
            for topic, payload in payloads:
                left = self._connection.publish(topic, payload)
            self.sent += len(payloads)
            while not left() and not self._end.is_set():
                time.sleep(0.001)

    def _listen(self) -> None:
        """Hear the coordinator, which takes answers to itself alone."""
        while isinstance(event := self._connection.next(0.0), Message):
            with suppress(FrameError):
                self._envelope.open(event.topic, event.payload)

    def stop(self) -> None:
        self._end.set()
        self.join(10)
        self._connection.close()


class Resident(threading.Thread):
    """The most memory of a process, in kB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process, self.most = 0, 0

    def watch(self, process: int) -> None:
        self._process = process
        self.start()

    def run(self) -> None:
        status = Path(f"/proc/{self._process}/status")
        while status.exists() and "VmHWM" in (text := status.read_text()):
            self.most = int(text.partition("VmHWM:")[2].split()[0])
            time.sleep(0.1)


def test_a_flood_changes_no_bit(
    served: ServedFleet, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    folder, devices, resident = served.folder, served.devices("tea", "coffee"), Resident()
    flooder = Flooder(served.reached_by("flood"), folder / "state-flood")
    flooder.start()

    def under_way(coordinator: int) -> None:
        resident.watch(coordinator)
        assert until((folder / "run" / "metrics.jsonl").exists, 120)
        assert until(lambda: flooder.sent > 1000 and ("", "flood") in counted(folder), 120)

    try:
        printed = run(folder, [digits_bundle.root, *served.serve], devices, under_way)
    finally:
        flooder.stop()
    codes = {code for _, code in counted(folder)}
    assert {"checksum", "flood", "unregistered", "runtime", "unknown-content"} <= codes
    assert 0 < resident.most < _MOST_RESIDENT
    assert printed.count("rejected") < 100  # a flood is not a line each
    assert same(weights(folder), open_run)
