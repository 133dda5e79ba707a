"""Devices that train nothing but speak the whole protocol, many to a thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.session import serve
from device_sim.emulation.crowd import CrowdDevice, Ready, ReadyUpdates
from device_sim.emulation.mosquitto import Mosquitto
from device_sim.emulation.sessions import Sessions
from edge_fl.compressors.base import DECODERS
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.errors import BrokerError
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.transfer import cut
from edge_fl.wire.frame import decode_frame, encode_frame
from edge_fl.wire.messages import Task, Topics

DEVICES, ROUNDS = 30, 3
NAMES = [f"device-{number:02}" for number in range(DEVICES)]


@contextmanager
def crowd(address: BrokerAddress, update: Callable[[str, Task], Ready]) -> Iterator[list[CrowdDevice]]:
    """The devices, on a thread of their own until the context ends."""
    topics, sessions, over = Topics(), Sessions(address), threading.Event()
    devices: list[CrowdDevice] = []

    def device(client: str, publish) -> CrowdDevice:
        devices.append(CrowdDevice(client, topics=topics, update=update, publish=publish))
        return devices[-1]

    for name in NAMES:
        sessions.open(
            name,
            subscriptions=CrowdDevice.subscriptions(topics, name),
            endpoint=lambda publish, name=name: device(name, publish),
            will=CrowdDevice.will(topics, name),
        )
    thread = threading.Thread(target=sessions.run, args=(over.is_set,))
    thread.start()
    try:
        yield devices
    finally:
        over.set()
        thread.join()
        sessions.close()


def ready(bundle: Bundle, config: RunConfig) -> ReadyUpdates:
    return ReadyUpdates(bundle.layout, open_recipe(config.method, config.parameters), config.run)


class Restart(Observer):
    """Kills the broker once, when round 2 has its tenth update, and starts it again."""

    def __init__(self, broker: Mosquitto) -> None:
        self._broker = broker
        self._number = self._accepted = 0
        self.done = False

    def round_started(self, number: int, selected: list[str]) -> None:
        self._number, self._accepted = number, 0

    def device(self, client: str, status: str) -> None:
        self._accepted += status == "accepted"
        if (self._number, self._accepted, self.done) == (2, 10, False):
            self.done = True
            self._broker.kill()
            self._broker.start()


@pytest.mark.parametrize("method", ["fedavg", "feddrop"])
def test_every_update_of_a_crowd_arrives_once_and_counts(
    digits_bundle: Bundle,
    system,
    address: BrokerAddress,
    tmp_path: Path,
    method: str,
) -> None:
    config = system.config(method, rounds=ROUNDS, clients=DEVICES, min_clients=DEVICES, quorum=1.0)
    updates = ready(digits_bundle, config)
    sent: dict[tuple[int, str], bytes] = {}

    def answer(client: str, task: Task) -> Ready:
        update = updates(client, task)
        sent[task.round, client] = b"".join(update.chunks)
        return update

    with crowd(address, answer) as devices:
        summary = serve(
            bundle=digits_bundle, config=config, root=tmp_path / "run", address=address, observer=Observer()
        )
        assert all(device.finished for device in devices)
    assert [device.accepted for device in devices] == [ROUNDS] * DEVICES
    for metrics in summary.rounds:
        assert metrics.uplink == {name: len(sent[metrics.round, name]) for name in NAMES}
        assert not metrics.rejections
        assert not metrics.excused
        assert set(metrics.downlink.values()) == {summary.dense}
    if method == "fedavg":
        change = decode_frame(sent[1, NAMES[0]], digits_bundle.layout, decoders=DECODERS).values
        trained, start = load_file(summary.weights), digits_bundle.weights()
        for name, weights in trained.items():
            np.testing.assert_allclose(weights, start[name] + ROUNDS * change[name], atol=1e-6)


@pytest.mark.parametrize("buffer", [0, DEVICES - 1])
def test_an_update_that_has_diverged_is_refused_and_does_the_model_no_harm(
    digits_bundle: Bundle, system, embedded: BrokerAddress, tmp_path: Path, buffer: int
) -> None:
    config = system.config(rounds=1, clients=DEVICES, min_clients=DEVICES, quorum=0.9, buffer=buffer)
    updates = ready(digits_bundle, config)

    def answer(client: str, task: Task) -> Ready:
        update = updates(client, task)
        if client != NAMES[7]:
            return update
        frame = decode_frame(b"".join(update.chunks), digits_bundle.layout, decoders=DECODERS)
        huge = encode_frame(frame.header, frame.pattern, {name: 1e7 * v for name, v in frame.values.items()})
        return Ready(ref_of(huge), cut(huge))

    with crowd(embedded, answer):
        summary = serve(
            bundle=digits_bundle, config=config, root=tmp_path / "run", address=embedded, observer=Observer()
        )
    (metrics,) = summary.rounds
    assert metrics.rejections == {"diverged": 1}
    assert "changes '" in metrics.excused[NAMES[7]]
    assert len(metrics.uplink) == DEVICES - 1
    trained, start = load_file(summary.weights), digits_bundle.weights()
    assert all(np.abs(trained[name] - start[name]).max() < 0.01 for name in start)


@pytest.mark.mosquitto
def test_a_crowd_survives_its_broker(digits_bundle: Bundle, system, mosquitto: Mosquitto, tmp_path: Path) -> None:
    config = system.config(rounds=ROUNDS, clients=DEVICES, min_clients=DEVICES, quorum=1.0)
    restart = Restart(mosquitto)
    with crowd(mosquitto.address, ready(digits_bundle, config)):
        summary = serve(
            bundle=digits_bundle, config=config, root=tmp_path / "run", address=mosquitto.address, observer=restart
        )
    assert restart.done
    assert [len(metrics.uplink) for metrics in summary.rounds] == [DEVICES] * ROUNDS


def test_no_broker_is_told_at_once() -> None:
    with pytest.raises(BrokerError, match="No MQTT broker answers at mqtt://127"):
        Sessions(BrokerAddress("127.0.0.1", 1)).open("device", subscriptions=["a"], endpoint=lambda _: None)
