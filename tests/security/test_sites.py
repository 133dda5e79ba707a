"""A site of a fleet: devices come to the site's own Mosquitto, which is bridged to the fleet's."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broker.provision.authority import Authority
from broker.provision.mosquitto import let_site_in, let_workers_in, write_mosquitto, write_site
from broker.provision.site import Site
from device_sim.emulation.mosquitto import Mosquitto, free_port
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.identity.file import device_identity, read_identity
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Disconnected, Message
from edge_fl.wire.messages import Topics
from tests.security.conftest import mosquitto_of
from tests.security.test_fleet import edge_fl, open_run, run, same, weights

__all__ = ["open_run"]

TOPICS = Topics()


def fleet_in(folder: Path) -> tuple[Authority, int]:
    port = free_port()
    return Authority.create(folder / "fleet", hosts=["localhost"], port=port), port


@contextmanager
def broker_of(folder: Path, port: int) -> Iterator[Mosquitto]:
    """The site's, started in its folder as its configuration says."""
    config = (folder / "mosquitto.conf").read_text()
    if os.geteuid() == 0:
        config += "user root\n"
    with Mosquitto(folder, address=BrokerAddress("localhost", port, "mqtts"), config=config) as broker:
        yield broker


@pytest.mark.mosquitto
def test_a_device_of_a_site_trains_with_the_bits_of_an_open_run(
    tmp_path: Path, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    authority, port = fleet_in(tmp_path)
    with mosquitto_of(authority, port) as hub:
        there = free_port()
        made = edge_fl(
            *("provision", "site", "plant", "--host", "localhost", "--port", str(there), "--device", "tea"),
            folder=tmp_path,
        )
        said = made.communicate(timeout=60)[0]
        assert made.returncode == 0, said
        assert "fleet/sites/plant: copy it to the site's machine" in said
        hub.reload()
        with broker_of(authority.folder / "sites" / "plant", there):
            devices: dict[str, list[str | Path]] = {
                "tea": ["--identity", authority.device("tea"), "--broker", f"mqtts://localhost:{there}"],
                "coffee": ["--identity", authority.device("coffee")],
            }
            run(tmp_path, [digits_bundle.root, "--identity", authority.folder / "coordinator.pem"], devices)
    assert same(weights(tmp_path), open_run)


@contextmanager
def session(address: BrokerAddress, name: str, *subscriptions: str) -> Iterator[Connection]:
    connection = Connection(address=address, client_id=name, subscriptions=list(subscriptions))
    connection.open(timeout=10)
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.mosquitto
def test_a_site_speaks_for_its_devices_alone(tmp_path: Path) -> None:
    authority, port = fleet_in(tmp_path)
    site = Site("plant", ("localhost",), free_port(), ("tea",))
    identity = authority.site(site)
    with mosquitto_of(authority, port) as hub:
        let_site_in(authority.folder, site, fleet="edge-fl")
        hub.reload()
        as_site = replace(hub.address, host="localhost", access=read_identity(identity).access)
        as_coordinator = replace(
            hub.address, host="localhost", access=read_identity(authority.folder / "coordinator.pem").access
        )
        with session(as_coordinator, "coordinator", f"{TOPICS.root}/up/#", TOPICS.all) as coordinator:
            for topic in (TOPICS.up("coffee"), TOPICS.all, TOPICS.down("tea")):
                with session(as_site, site.identity, TOPICS.all) as bridge:
                    bridge.publish(topic, b"forged")
                    while not isinstance(bridge.next(10), Disconnected):  # Mosquitto ends the session
                        pass
            with session(as_site, site.identity, f"{TOPICS.root}/#") as bridge:
                bridge.publish(TOPICS.up("tea", "3"), b"own")
                assert heard(coordinator, b"own") == [b"own"]
                coordinator.publish(TOPICS.down("coffee"), b"another's")
                coordinator.publish(TOPICS.down("tea"), b"its own")
                assert heard(bridge, b"its own") == [b"its own"]


def heard(end: Connection, last: bytes) -> list[bytes]:
    """What comes until ``last``."""
    until, found = time.monotonic() + 10, list[bytes]()
    while last not in found:
        assert time.monotonic() < until
        if isinstance(event := end.next(1), Message):
            found.append(event.payload)
    return found


def test_a_second_call_replaces_devices_and_renews_nothing(tmp_path: Path) -> None:
    authority, port = fleet_in(tmp_path)
    write_mosquitto(authority.folder, port=port, fleet="edge-fl")
    before = authority.folder.joinpath("mosquitto.acl").read_text()
    words = ["provision", "site", "plant", "--host", "localhost"]
    assert edge_fl(*words, "--device", "tea", "--device", "milk", folder=tmp_path).wait(60) == 0
    let_workers_in(authority.folder, count=1, fleet="edge-fl")
    identity = (tmp_path / "fleet/sites/plant/site.pem").read_bytes()
    assert edge_fl(*words, "--device", "tea", folder=tmp_path).wait(60) == 0
    assert (tmp_path / "fleet/sites/plant/site.pem").read_bytes() == identity
    listed = (tmp_path / "fleet/mosquitto.acl").read_text()
    assert listed.startswith(before)
    assert listed.count("user site:plant\n") == listed.count("user coordinator-worker-1\n") == 1
    assert "milk" not in listed + (tmp_path / "fleet/sites/plant/mosquitto.conf").read_text()
    assert edge_fl(*words[:3], "--host", "other", "--device", "tea", folder=tmp_path).wait(60) == 0
    assert (tmp_path / "fleet/sites/plant/site.pem").read_bytes() != identity
    shown = edge_fl("provision", "list", "--json", folder=tmp_path).communicate(timeout=60)[0]
    assert [row["revoked"] for row in json.loads(shown) if row["name"] == "site:plant"] == [True, False]


def test_a_device_is_at_one_site(tmp_path: Path) -> None:
    authority, _ = fleet_in(tmp_path)
    authority.site(Site("plant", ("a",), 1, ("tea",)))
    other = edge_fl("provision", "site", "store", "--host", "b", "--device", "tea", folder=tmp_path)
    said = " ".join(other.communicate(timeout=60)[0].split())
    assert other.returncode == 15
    assert (
        "'tea' is a device of site 'plant': first run `edge-fl provision site plant` without that device" in said
    )
    assert not (authority.folder / "sites" / "store").exists()


def test_bad_sites_are_refused(tmp_path: Path) -> None:
    authority, _ = fleet_in(tmp_path)
    for site in (
        Site("a b", ("a",), 1, ("tea",)),
        Site("plant", ("a",), 1, ("tea/#",)),
        Site("plant", ("a b",), 1, ("tea",)),
    ):
        with pytest.raises(ConfigError):
            authority.site(site)
    assert not authority.holds("site:plant")
    spaced = Authority.create(tmp_path / "spaced", hosts=["localhost"], port=1, fleet="our fleet")
    with pytest.raises(ConfigError, match="bridges no topics with a space"):
        spaced.site(Site("plant", ("a",), 1, ("tea",)))


def test_a_sites_identity_is_no_devices_and_is_renewed_and_revoked(tmp_path: Path) -> None:
    authority, _ = fleet_in(tmp_path)
    site = Site("plant", ("a",), 1, ("tea",))
    file = authority.site(site)
    write_site(authority.folder, site, fleet="edge-fl", broker=BrokerAddress.parse(authority.broker))
    with pytest.raises(ConfigError, match="no device's"):
        device_identity(file)
    with pytest.raises(ConfigError):
        authority.device("site:plant")
    before = file.read_bytes()
    assert authority.rotate("site:plant") == file
    assert file.read_bytes() != before
    authority.revoke("site:plant")
    assert not file.exists()
