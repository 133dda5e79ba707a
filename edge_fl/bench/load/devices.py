"""The processes of the devices: each session serves the coordinator and the bare program alike, in turn."""

import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from device_sim.crowd import CrowdDevice, ReadyUpdate
from device_sim.sessions import Publish, Sessions
from edge_fl.bench.load.bare import BareDevice
from edge_fl.bundle import Bundle
from edge_fl.transport.connection import BrokerAddress
from edge_fl.wire.messages import Topics

__all__ = ["main"]


class _Both:
    """One session's two lives."""

    def __init__(self, device: CrowdDevice, bare: BareDevice) -> None:
        self.device, self._bare = device, bare

    def connected(self) -> None:
        self.device.connected()

    def received(self, topic: str, payload: bytes) -> None:
        if self._bare.is_mine(topic):
            self._bare.received(payload)
        else:
            self.device.received(topic, payload)

    def tick(self, now: float) -> None:
        self.device.tick(now)


def main(
    pipe: Connection, address: BrokerAddress, bundle: Path, clients: Sequence[str], model: int, update: int
) -> None:
    """Be these devices until the pipe says so; then tell how many updates of theirs were accepted."""
    topics, ready, content = Topics(), ReadyUpdate(Bundle.load(bundle).layout), os.urandom(update)
    sessions = Sessions(address)
    both: list[_Both] = []

    def endpoint(client: str, publish: Publish) -> _Both:
        device = CrowdDevice(client, topics=topics, update=ready, publish=publish)
        both.append(_Both(device, BareDevice(client, model=model, update=content, publish=publish)))
        return both[-1]

    for client in clients:
        sessions.open(
            client,
            subscriptions=[*CrowdDevice.subscriptions(topics, client), BareDevice.subscription(client)],
            endpoint=lambda publish, client=client: endpoint(client, publish),
            will=CrowdDevice.will(topics, client),
        )
    sessions.run(pipe.poll)
    pipe.send(sum(one.device.accepted for one in both))
    sessions.close()
