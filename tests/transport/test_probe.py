"""What a broker lets through."""

from pathlib import Path

import pytest

from broker.embedded import EmbeddedBroker
from device_sim.emulation.bad_link import BadLink, Faults
from device_sim.emulation.mosquitto import Mosquitto, free_port, mosquitto_program
from edge_fl.core.content import CHUNK_SIZE
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.probe import round_trip


def test_a_chunk_comes_back() -> None:
    with EmbeddedBroker(port=0) as broker:
        seconds = round_trip(broker.address, client="a", topic="edge-fl/2/doctor/a", timeout=30)
    assert seconds is not None


@pytest.mark.mosquitto
def test_nothing_is_known_where_nothing_comes_back(tmp_path: Path) -> None:
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    (tmp_path / "acl").write_text("topic read edge-fl/#\n")
    where = BrokerAddress("127.0.0.1", free_port())
    config = f"listener {where.port} 127.0.0.1\nallow_anonymous true\nacl_file {tmp_path / 'acl'}\nuser root\n"
    with Mosquitto(tmp_path, address=where, config=config):
        assert round_trip(where, client="a", topic="edge-fl/2/doctor/a", timeout=30) is None


@pytest.mark.parametrize("trouble", ["stall", "reset"])
def test_a_link_that_fails_meanwhile_is_no_limit(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that is started again at that moment must not end with another's fault."""
    monkeypatch.setattr("edge_fl.transport.probe._SECONDS", 2.0)
    troubled = []

    def publish(connection: Connection, topic: str, payload: bytes) -> object:
        if len(payload) == CHUNK_SIZE and not troubled:
            troubled.append(trouble)
            link.reset() if trouble == "reset" else link.stall(3.0)
        return published(connection, topic, payload)

    published = Connection.publish
    monkeypatch.setattr(Connection, "publish", publish)
    with EmbeddedBroker(port=0) as broker, BadLink(broker.address, Faults(), seed=1) as link:
        assert round_trip(link.address, client="a", topic="edge-fl/2/doctor/a", timeout=30) is not None
    assert troubled == [trouble]
