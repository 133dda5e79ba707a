"""The processes of the devices: each session serves the coordinator and the bare program alike, in turn."""

import os
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection

from benchmarks.load.bare import BareDevice
from benchmarks.load.child import Place
from device_sim.emulation.crowd import CrowdDevice, ReadyUpdates
from device_sim.emulation.sessions import Publish, Sessions
from edge_fl.core.bundle import Bundle
from edge_fl.recipes.recipe import open_recipe
from edge_fl.wire.messages import Topics

__all__ = ["main"]


class _Both:
    """One session's two lives."""

    def __init__(self, device: CrowdDevice, bare: BareDevice) -> None:
        self._device, self._bare = device, bare

    def connected(self) -> None:
        self._device.connected()

    def received(self, topic: str, payload: bytes) -> None:
        if self._bare.is_mine(topic):
            self._bare.received(topic, payload)
        else:
            self._device.received(topic, payload)

    def tick(self, now: float) -> None:
        self._device.tick(now)


def main(pipe: Connection, place: Place, clients: Sequence[str], model: int, update: int) -> None:
    """Be these devices; make the updates of any round that the pipe names, with its clients, until it says None.

    Then it is told how many of the devices' updates were accepted. ``model`` and ``update`` are bytes of a frame.
    """
    config = place.config
    recipe = open_recipe(config.method, config.parameters)
    updates = ReadyUpdates(Bundle.load(place.bundle).layout, recipe, config.run)
    sessions, topics, content = Sessions(place.address), Topics(), os.urandom(update)

    devices: dict[str, CrowdDevice] = {}

    def endpoint(client: str, publish: Publish) -> _Both:
        devices[client] = CrowdDevice(client, topics=topics, update=updates, publish=publish)
        return _Both(devices[client], BareDevice(client, model=model, update=content, publish=publish))

    for client in clients:
        sessions.open(
            client,
            subscriptions=[*CrowdDevice.subscriptions(topics, client), BareDevice.subscription(client)],
            endpoint=partial(endpoint, client),
            will=CrowdDevice.will(topics, client),
        )
    sessions.run(pipe.poll)
    while (coming := pipe.recv()) is not None:
        number, selected = coming
        updates.prepare([client for client in selected if client in devices], number)
        pipe.send(None)
        sessions.run(pipe.poll)
    pipe.send(sum(device.accepted for device in devices.values()))
    sessions.close()
