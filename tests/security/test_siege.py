"""One run over TLS, on both brokers, with a device that never answers, and one too many. Its coordinator is killed, and
its newest model, its record and a device's memory are damaged: it goes on.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from edge_fl.agent.envelope import open_envelope
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import FrameError
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Message
from edge_fl.wire.messages import PROTOCOL, Register, Topics
from tests.security.conftest import ServedFleet
from tests.security.test_fleet import edge_fl

TOPICS, ROUNDS = Topics(), 7
RUN = ["--min-clients=3", "--clients-per-round=3", "--quorum=0.6", "--max-devices=3", "--deadline=4", "--seed=3"]


class Mute(threading.Thread):
    """Registers again and again, and does nothing that it is asked."""

    def __init__(self, address: BrokerAddress, state: Path) -> None:
        super().__init__(daemon=True)
        self._envelope = open_envelope(address.access.signing, state)
        self._connection = Connection(
            address=address, client_id="mute", subscriptions=[TOPICS.all, TOPICS.down("mute")]
        )
        self._end = threading.Event()

    def run(self) -> None:
        up, said = TOPICS.up("mute"), Register(protocol=PROTOCOL, agent="m", runtime="onnx", samples=240)
        self._connection.open(timeout=120)
        while not self._end.is_set():
            self._connection.publish(up, self._envelope.seal(up, said))
            until = time.monotonic() + 1
            while time.monotonic() < until:
                event = self._connection.next(0.2)
                if isinstance(event, Message):
                    with suppress(FrameError):
                        self._envelope.open(event.topic, event.payload)

    def stop(self) -> None:
        self._end.set()
        self.join(10)
        self._connection.close()


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)


def damage(root: Path) -> int:
    """Spoil the newest model and the record; how many rounds were written down."""
    finished = (root / "metrics.jsonl").read_bytes().count(b"\n")
    newest = max((root / "checkpoints").glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(content)
    for beside in ("-wal", "-shm"):
        (root / f"state.sqlite{beside}").unlink(missing_ok=True)
    (root / "state.sqlite").write_bytes(b"no database" * 1000)
    return finished


@pytest.mark.matrix
def test_a_siege(served: ServedFleet, digits_bundle: Bundle) -> None:
    folder, mute = served.folder, Mute(served.reached_by("mute"), served.folder / "m")
    identities = served.devices("tea", "coffee", "late")
    own = {
        n: ["--data", f"digits:{n}/2", "--state", f"s{n}", "--once", "--connect-timeout", "120"] for n in (0, 1)
    }
    options = [f"--rounds={ROUNDS}", "--local-steps=3", "--method=fedbiad", *RUN, "-o", "run"]
    started = [edge_fl("serve", digits_bundle.root, *served.serve, *options, folder=folder)]
    try:
        mute.start()
        devices = [
            edge_fl("device", *identities[name], *own[number], folder=folder)
            for number, name in enumerate(("tea", "coffee"))
        ]
        started += devices
        metrics = folder / "run" / "metrics.jsonl"
        until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 1)
        late = edge_fl("device", *identities["late"], *own[0][:2], "--state", "late", "--once", folder=folder)
        said, _ = late.communicate(timeout=60)
        assert late.returncode == 22, said
        assert "takes no more" in said
        until(lambda: metrics.read_bytes().count(b"\n") >= 3)
        started[0].kill()
        started[0].wait(30)
        finished = damage(folder / "run")
        (remembered,) = (folder / "s1" / "method").glob("*/accepted.npz")
        # A verdict that was on its way has the device write this file anew.
        until(lambda: time.time() - remembered.stat().st_mtime > 2)
        remembered.write_bytes(b"no memory")
        again = edge_fl("serve", *served.serve, "--resume", "run", folder=folder)
        started.append(again)
        said, _ = again.communicate(timeout=200)
        assert again.returncode == 0, said
        assert "is damaged" in said
        assert f"The run goes on after round {finished}" in " ".join(said.split())
        assert [device.wait(60) for device in devices] == [0, 0]
        assert remembered.with_suffix(".damaged").exists()
    finally:
        mute.stop()
        for process in started:
            process.kill()
    rounds = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [one["round"] for one in rounds] == list(range(1, ROUNDS + 1))
    assert all(one["uplink"].keys() in ({"tea", "coffee"}, set()) for one in rounds)
    assert sum(not one["uplink"] for one in rounds) == 1  # the round that the record lost
    assert "mute" in rounds[0]["excused"]
    assert rounds[-1]["loss"] < rounds[0]["loss"]
    asked = ["mute" in one["tiers"] for one in rounds]
    assert not all(asked[2:])  # who is silent rests
