"""A fleet with identities, on both brokers."""

import os
import shutil
from collections.abc import Iterator
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


def serve_embedded(folder: Path, port: int) -> list[str | Path]:
    """Options of `serve` that open the embedded broker with the identity in a fleet's ``folder``, to all hosts."""
    return ["--broker", "embedded", "--identity", folder / "broker.pem", "--host", "0.0.0.0", "--port", str(port)]


@pytest.fixture(params=["embedded", pytest.param("mosquitto", marks=pytest.mark.mosquitto)])
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
    if mosquitto_program() is None:
        if os.environ.get("EDGE_FL_REQUIRE_MOSQUITTO"):
            pytest.fail("mosquitto is not installed, and EDGE_FL_REQUIRE_MOSQUITTO is set")
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    config = write_mosquitto(authority.folder, port=port, fleet="edge-fl").read_text()
    if os.geteuid() == 0:
        config += "user root\n"  # root's own files, where it is root who tests
    address = BrokerAddress("127.0.0.1", port, "mqtts")
    (tmp_path / "mosquitto").mkdir()
    with Mosquitto(tmp_path / "mosquitto", address=address, config=config) as mosquitto:
        yield SecuredFleet(authority, address, mosquitto)


@dataclass(frozen=True)
class _Embedded(SecuredFleet):
    """Whose coordinator has the key of the house."""

    inside: BrokerAddress

    @property
    def coordinator(self) -> BrokerAddress:
        return self.inside


@pytest.fixture
def other_authority(tmp_path: Path) -> Iterator[Authority]:
    """Another fleet's."""
    yield Authority.create(tmp_path / "other", hosts=["127.0.0.1"], port=1)
    shutil.rmtree(tmp_path / "other")
