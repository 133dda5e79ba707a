"""Fleets with identities, on both brokers."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from broker.doors import Doors
from broker.embedded import EmbeddedBroker
from broker.provision.authority import Authority
from broker.provision.mosquitto import write_mosquitto
from device_sim.emulation.mosquitto import Mosquitto, free_port, mosquitto_program
from edge_fl.identity.file import read_identity
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress

BROKERS = ["embedded", pytest.param("mosquitto", marks=pytest.mark.mosquitto)]
# What needs half a minute on each: Mosquitto has its turn in make test-all.
BROKERS_IN_TURN = ["embedded", pytest.param("mosquitto", marks=(pytest.mark.mosquitto, pytest.mark.matrix))]


@dataclass(frozen=True)
class SecuredFleet:
    """A broker that knows who is who, its authority, and its running process if that is one of its own."""

    authority: Authority
    address: BrokerAddress
    mosquitto: Mosquitto | None

    def identity(self, name: str) -> Path:
        return self.authority.device(name)

    def of(self, file: Path) -> BrokerAddress:
        """The broker as the holder of an identity reaches it."""
        return replace(self.address, access=read_identity(file).access)

    @property
    def coordinator(self) -> BrokerAddress:
        return self.of(self.authority.folder / "coordinator.pem")

    def reload(self) -> None:
        """Have the broker learn of revocations, where it does not by itself."""
        if self.mosquitto is not None:
            self.mosquitto.reload()


@contextmanager
def mosquitto_of(authority: Authority, port: int, *lines: str) -> Iterator[Mosquitto]:
    """Mosquitto for a fleet, with further lines of configuration."""
    if mosquitto_program() is None:
        if os.environ.get("EDGE_FL_REQUIRE_MOSQUITTO"):
            pytest.fail("mosquitto is not installed, and EDGE_FL_REQUIRE_MOSQUITTO is set")
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    config = write_mosquitto(authority.folder, port=port, fleet="edge-fl").read_text()
    if os.geteuid() == 0:
        config += "user root\n"  # root's own files, where it is root who tests
    folder = authority.folder.parent / "mosquitto"
    folder.mkdir()
    config += "".join(f"{line}\n" for line in lines)
    with Mosquitto(folder, address=BrokerAddress("127.0.0.1", port, "mqtts"), config=config) as mosquitto:
        yield mosquitto


@pytest.fixture(params=BROKERS)
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SecuredFleet]:
    port = free_port()
    authority = Authority.create(
        tmp_path / "fleet", hosts=["localhost", "127.0.0.1"], port=port, enrol_port=free_port()
    )
    if request.param == "embedded":
        own = authority.folder / "broker.pem"
        with EmbeddedBroker(port=port, doors=Doors(cert=own, ca=own)) as broker:
            access = replace(broker.address.access, signing=authority.folder / "coordinator.pem")
            inside = replace(broker.address, access=access)
            yield _Embedded(authority, replace(broker.address, access=Access()), None, inside)
        return
    with mosquitto_of(authority, port) as mosquitto:
        yield SecuredFleet(authority, mosquitto.address, mosquitto)


@dataclass(frozen=True)
class _Embedded(SecuredFleet):
    """Whose coordinator has the key of the house."""

    inside: BrokerAddress

    @property
    def coordinator(self) -> BrokerAddress:
        return self.inside


@dataclass(frozen=True)
class ServedFleet:
    """A fleet of real processes, which run in ``folder``, with Mosquitto, or else with the broker of `serve`.

    ``serve`` are the options of `serve` that lead to the broker, and ``address`` is how devices reach it.
    """

    folder: Path
    authority: Authority
    address: BrokerAddress
    serve: list[str | Path]
    mosquitto: Mosquitto | None = None

    def devices(self, *names: str) -> dict[str, list[str | Path]]:
        """Options of `device`, by the names of new devices."""
        return {name: ["--identity", self.authority.device(name)] for name in names}

    def reached_by(self, name: str) -> BrokerAddress:
        """The broker as a new device of that name reaches it."""
        return replace(self.address, access=read_identity(self.authority.device(name)).access)

    @contextmanager
    def before_serve(self, largest: int = 16 << 20) -> Iterator[BrokerAddress]:
        """The broker, as whoever has the coordinator's identity reaches it while no `serve` runs."""
        if self.mosquitto is not None:
            yield replace(self.address, access=read_identity(self.authority.folder / "coordinator.pem").access)
            return
        own = self.authority.folder / "broker.pem"
        with EmbeddedBroker(port=self.address.port, doors=Doors(cert=own, ca=own), largest=largest) as broker:
            yield broker.address


def embedded_in(folder: Path) -> ServedFleet:
    """A fleet with the embedded broker."""
    port = free_port()
    authority = Authority.create(folder / "fleet", hosts=["localhost"], port=port)
    serve: list[str | Path] = ["--broker", "embedded", "--identity", authority.folder / "broker.pem"]
    serve += ["--host", "0.0.0.0"]  # its port is the one in the identities
    return ServedFleet(folder, authority, BrokerAddress("localhost", port, "mqtts"), serve)


@pytest.fixture(params=BROKERS_IN_TURN)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServedFleet]:
    fleet = embedded_in(tmp_path)
    if request.param == "embedded":
        yield fleet
        return
    with mosquitto_of(fleet.authority, fleet.address.port) as mosquitto:
        yield replace(fleet, serve=["--identity", fleet.authority.folder / "coordinator.pem"], mosquitto=mosquitto)


@pytest.fixture
def other_authority(tmp_path: Path) -> Iterator[Authority]:
    """Another fleet's."""
    yield Authority.create(tmp_path / "other", hosts=["127.0.0.1"], port=1)
    shutil.rmtree(tmp_path / "other")
