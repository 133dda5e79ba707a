"""A site of a fleet: devices come to the site's own Mosquitto, which is bridged to the fleet's."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from broker.provision.authority import Authority
from broker.provision.mosquitto import let_site_in, let_site_out, let_workers_in, write_mosquitto, write_site
from broker.provision.site import Site
from device_sim.emulation.mosquitto import Mosquitto, free_port
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BrokerError, ConfigError
from edge_fl.identity.file import device_identity
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Disconnected, Message
from edge_fl.wire.messages import Topics
from tests.security.conftest import SecuredFleet, mosquitto_of
from tests.security.test_fleet import edge_fl, open_run, run, same, wait_until_it_hears, weights

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


@contextmanager
def fleet_with_a_site(
    folder: Path,
) -> Iterator[tuple[Authority, Mosquitto, Mosquitto, dict[str, list[str | Path]]]]:
    """Both brokers, and options of `device`: tea is at the site, coffee is not."""
    authority, port = fleet_in(folder)
    with mosquitto_of(authority, port) as hub:
        there = free_port()
        made = edge_fl(
            *("provision", "site", "plant", "--host", "localhost", "--port", str(there), "--device", "tea"),
            folder=folder,
        )
        said = made.communicate(timeout=60)[0]
        assert made.returncode == 0, said
        assert "fleet/sites/plant: copy it to the site's machine" in said
        assert "Nobody is called tea yet" in said
        hub.reload()
        with broker_of(authority.folder / "sites" / "plant", there) as broker:
            devices: dict[str, list[str | Path]] = {
                "tea": ["--identity", authority.device("tea"), "--broker", f"mqtts://localhost:{there}"],
                "coffee": ["--identity", authority.device("coffee")],
            }
            yield authority, hub, broker, devices


@pytest.mark.mosquitto
def test_a_device_of_a_site_trains_with_the_bits_of_an_open_run(
    tmp_path: Path, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    with fleet_with_a_site(tmp_path) as (authority, _, _, devices):
        run(tmp_path, [digits_bundle.root, "--identity", authority.folder / "coordinator.pem"], devices)
    assert same(weights(tmp_path), open_run)


@pytest.mark.matrix
@pytest.mark.mosquitto
def test_a_run_outlives_either_broker(tmp_path: Path, digits_bundle: Bundle) -> None:
    def fail(*brokers: Mosquitto) -> None:
        wait_until_it_hears(tmp_path)
        for broker in brokers:
            time.sleep(8)
            broker.kill()
            time.sleep(2)
            broker.start()
            ended.append(broker)

    ended: list[Mosquitto] = []
    with fleet_with_a_site(tmp_path) as (authority, hub, broker, devices):
        failing = threading.Thread(target=fail, args=(hub, broker))
        failing.start()
        serve = [digits_bundle.root, "--identity", authority.folder / "coordinator.pem"]
        printed = run(tmp_path, serve, devices, options=["--rounds=200"])
        failing.join()
    assert ended == [hub, broker]
    assert "is over after 200 rounds" in printed


@contextmanager
def session(address: BrokerAddress, name: str, *subscriptions: str) -> Iterator[Connection]:
    connection = Connection(address=address, client_id=name, subscriptions=list(subscriptions))
    connection.open(timeout=10)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def fleet_that_knows_a_site(folder: Path) -> Iterator[tuple[SecuredFleet, Path]]:
    """Its broker, and the identity of the site 'plant', whose device is tea."""
    authority, port = fleet_in(folder)
    site = Site("plant", ("localhost",), free_port(), ("tea",))
    identity = authority.site(site)
    with mosquitto_of(authority, port) as hub:
        let_site_in(authority.folder, site, fleet="edge-fl")
        hub.reload()
        yield SecuredFleet(authority, replace(hub.address, host="localhost"), hub), identity


@pytest.mark.mosquitto
def test_a_site_speaks_for_its_devices_alone(tmp_path: Path) -> None:
    with fleet_that_knows_a_site(tmp_path) as (fleet, identity):
        as_site = fleet.of(identity)
        with session(fleet.coordinator, "coordinator", f"{TOPICS.root}/up/#", TOPICS.all) as coordinator:
            for topic in (TOPICS.up("coffee"), TOPICS.all, TOPICS.down("tea")):
                with session(as_site, "site:plant", TOPICS.all) as bridge:
                    bridge.publish(topic, b"forged")
                    until_it_ends(bridge)
            with session(as_site, "site:plant", f"{TOPICS.root}/#") as bridge:
                bridge.publish(TOPICS.up("tea", "3"), b"own")
                assert heard(coordinator, b"own") == [b"own"]
                coordinator.publish(TOPICS.down("coffee"), b"another's")
                coordinator.publish(TOPICS.down("tea"), b"its own")
                assert heard(bridge, b"its own") == [b"its own"]


def until_it_ends(end: Connection) -> None:
    """Mosquitto ends a session that publishes what it may not."""
    until = time.monotonic() + 10
    while not isinstance(end.next(1), Disconnected):
        assert time.monotonic() < until


@pytest.mark.mosquitto
def test_a_revoked_site_has_no_rights_whatever_session_it_has(tmp_path: Path) -> None:
    with fleet_that_knows_a_site(tmp_path) as (fleet, identity):
        as_site = fleet.of(identity)
        with (
            session(fleet.coordinator, "coordinator", f"{TOPICS.root}/up/#") as coordinator,
            session(as_site, "site:plant", TOPICS.all) as bridge,
        ):
            bridge.publish(TOPICS.up("tea"), b"before")
            assert heard(coordinator, b"before") == [b"before"]
            kept = identity.read_bytes()
            assert edge_fl("provision", "revoke", "site:plant", folder=tmp_path).wait(60) == 0
            fleet.reload()
            time.sleep(1)
            bridge.publish(TOPICS.up("tea"), b"after")
            until_it_ends(bridge)
            assert coordinator.next(1) is None
        identity.write_bytes(kept)
        with pytest.raises(BrokerError), session(as_site, "site:plant", TOPICS.all):
            pass


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


def test_a_revoked_site_comes_back_on_its_port(tmp_path: Path) -> None:
    fleet_in(tmp_path)
    words = ["provision", "site", "plant", "--host", "a", "--device", "tea"]
    config = "fleet/sites/plant/mosquitto.conf"
    assert edge_fl(*words, "--port", "18993", folder=tmp_path).wait(60) == 0
    revoked = edge_fl("provision", "revoke", "site:plant", folder=tmp_path).communicate(timeout=60)[0]
    assert "to site 'plant'" not in revoked
    assert edge_fl(*words, folder=tmp_path).wait(60) == 0
    assert "listener 18993\n" in (tmp_path / config).read_text()
    assert (tmp_path / "fleet/sites/plant/site.pem").exists()


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


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        (Site("a b", ("a",), 1, ("tea",)), "An id has 1 to 64 letters"),
        (Site("a" * 60, ("a",), 1, ("tea",)), "at most 59 characters"),
        (Site("plant", ("a",), 1, ("tea/#",)), "unlike 'tea/#'"),
        (Site("plant", ("a",), 1, ("coordinator",)), "'coordinator' is not a device"),
        (Site("plant", ("a b",), 1, ("tea",)), "'a b'"),
        (Site("plant", (), 1, ("tea",)), "give --host"),
        (Site("plant", ("hub.example",), 1, ("tea",)), "'hub.example' is the fleet's broker"),
    ],
)
def test_bad_sites_are_refused(tmp_path: Path, site: Site, sentence: str) -> None:
    authority = Authority.create(tmp_path / "fleet", hosts=["hub.example"], port=1)
    with pytest.raises(ConfigError, match=sentence):
        authority.site(site)
    assert Authority.open(authority.folder).sites == ()
    assert authority.site(Site("a" * 59, ("a",), 1, ("tea",))).exists()


def test_no_site_is_in_a_fleet_whose_name_has_a_space(tmp_path: Path) -> None:
    spaced = Authority.create(tmp_path / "spaced", hosts=["localhost"], port=1, fleet="our fleet")
    with pytest.raises(ConfigError, match="bridges no topics with a space"):
        spaced.site(Site("plant", ("a",), 1, ("tea",)))


def test_an_identity_that_was_not_written_or_is_revoked_is_made_anew(tmp_path: Path) -> None:
    authority, _ = fleet_in(tmp_path)
    site = Site("plant", ("a", "b"), 1, ("tea",))
    file = authority.site(site)
    first = file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    assert authority.site(msgspec.structs.replace(site, hosts=("b", "a"))).read_bytes() == first
    second = authority.site(msgspec.structs.replace(site, hosts=("c",))).read_bytes()
    assert second != first
    file.write_bytes(first)  # as where the disk was full: the first is revoked
    assert authority.site(msgspec.structs.replace(site, hosts=("c",))).read_bytes() not in (first, second)


def test_a_list_that_was_edited_by_hand_keeps_its_other_lines(tmp_path: Path) -> None:
    authority, port = fleet_in(tmp_path)
    write_mosquitto(authority.folder, port=port, fleet="edge-fl")
    file, site = authority.folder / "mosquitto.acl", Site("plant", ("a",), 1, ("tea",))
    let_site_in(authority.folder, site, fleet="edge-fl")
    file.write_bytes(
        file.read_bytes().replace(b"user site", b"# mine\nuser site").replace(b"\n", b"\r\n") + b"user me\r\n"
    )
    let_site_in(authority.folder, msgspec.structs.replace(site, devices=("milk",)), fleet="edge-fl")
    lines = file.read_text().splitlines()
    assert "topic write edge-fl/2/up/+/tea/#" not in lines
    assert lines.count("user site:plant") == lines.count("# mine") == lines.count("user me") == 1
    let_site_out(authority.folder, "site:plant")
    assert "milk" not in file.read_text()
    assert "user me" in file.read_text()


def test_every_site_has_the_newest_list_of_revoked_certificates(tmp_path: Path) -> None:
    authority, _ = fleet_in(tmp_path)
    authority.site(Site("plant", ("a",), 1, ("tea",)))
    authority.device("milk")
    authority.revoke("milk")
    newest = (authority.folder / "revoked.pem").read_bytes()
    assert (authority.folder / "sites" / "plant" / "revoked.pem").read_bytes() == newest
    with pytest.raises(ConfigError, match="Nobody is called 'plant' here: give 'site:plant' to revoke that site"):
        authority.revoke("plant")


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
    again = Authority.open(authority.folder)
    with pytest.raises(ConfigError, match=r"is revoked: `edge-fl provision site plant .*` lets it"):
        again.rotate("site:plant")
    assert again.site(Site("store", ("b",), 1, ("tea",))).exists()  # the device is at no site any more
