"""A broker of several nodes: a session goes round them."""

import time
from pathlib import Path

import pytest

from broker.embedded import EmbeddedBroker
from edge_fl.core.errors import BrokerError, ConfigError
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Disconnected, Event, Message


def beside(*nodes: BrokerAddress) -> BrokerAddress:
    return BrokerAddress.parse("mqtt://" + ",".join(f"{node.host}:{node.port}" for node in nodes))


def test_nodes_are_addresses_of_their_own() -> None:
    found = BrokerAddress.parse("mqtts://a,b:1/", Access(user="me", password="x"))
    assert [str(node) for node in found.nodes] == ["mqtts://a:8883", "mqtts://b:1"]
    assert all(node.access == found.access and not node.others for node in found.nodes)
    assert BrokerAddress.parse(str(found)).nodes == BrokerAddress.parse("mqtts://a:8883,b:1").nodes


def test_a_password_is_for_this_machine_alone_or_encrypted() -> None:
    """Of a cluster whose other node is elsewhere, too."""
    with pytest.raises(ConfigError, match="would carry the password unencrypted"):
        BrokerAddress.parse("mqtt://localhost,broker", Access(user="me", password="x"))
    assert not BrokerAddress.parse("mqtt://localhost,broker").loopback


def test_there_are_not_too_many_nodes() -> None:
    with pytest.raises(ConfigError, match="at most 16 nodes, not 17"):
        BrokerAddress.parse("mqtt://" + ",".join(f"n{i}" for i in range(17)))


def awaited(end: Connection, kind: type[Event]) -> Event:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if isinstance(event := end.next(1), kind):
            return event
    raise AssertionError(f"no {kind.__name__}")


def test_a_node_that_is_down_hides_no_second_device_of_the_same_id() -> None:
    address = beside(BrokerAddress("127.0.0.1", 1), BrokerAddress("127.0.0.1", 2))
    end = Connection(address=address, client_id="dev", subscriptions=["a"])
    end._short_sessions = 4
    end._on_connect_fail(None, None)
    assert end._short_sessions == 4
    end._on_connect_fail(None, None)  # none is up, so no other device takes the session
    assert end._short_sessions == 0


def test_a_session_goes_round_as_nodes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_fl.transport.connection._RETRY_SECONDS", (0.05, 1))
    first, second, third = (EmbeddedBroker(port=0) for _ in range(3))
    with third:
        with second:
            with first:
                address = beside(first.address, second.address, third.address)
                ends = [Connection(address=address, client_id=f"dev.{i}", subscriptions=["a"]) for i in range(8)]
                for end in ends:
                    end.open(timeout=5)
                    awaited(end, Connected)
                began = {end._address.port for end in ends}
            assert len(began) > 1  # a fleet spreads over the nodes
            for end in ends:
                if end._address.port == first.address.port:
                    awaited(end, Disconnected)
        for end in ends:
            until = time.monotonic() + 20
            while end._address.port != third.address.port or not end._client.is_connected():
                assert time.monotonic() < until
                end.next(0.1)
        for end in ends:
            end.publish("a", b"here")
            assert awaited(end, Message) == Message("a", b"here")
            end.close()


def test_the_first_session_tries_all_nodes(tmp_path: Path) -> None:
    with EmbeddedBroker(port=0) as there, EmbeddedBroker(port=0) as gone:
        pass
    with pytest.raises(BrokerError, match=r"No MQTT broker answers at mqtt://127\.0\.0\.1"):
        Connection(address=beside(gone.address, there.address), client_id="a", subscriptions=["a"]).open(timeout=1)
    with EmbeddedBroker(port=0) as there:
        for _ in range(4):
            end = Connection(address=beside(gone.address, there.address), client_id="a", subscriptions=["a"])
            end.open(timeout=5)
            end.close()


class Refused:
    """What a broker answers to a subscription that it cannot keep."""

    is_failure = True


def test_a_session_whose_subscription_is_refused_later_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a cluster that has just lost a node: it would be connected, and hear nothing."""
    monkeypatch.setattr("edge_fl.transport.connection._RETRY_SECONDS", (0.05, 1))
    with EmbeddedBroker(port=0) as broker:
        end = Connection(address=broker.address, client_id="a", subscriptions=["a"])
        end.open(timeout=5)
        awaited(end, Connected)
        end._on_subscribe(None, None, None, [Refused()], None)
        awaited(end, Disconnected)
        awaited(end, Connected)
        end.publish("a", b"here")
        assert awaited(end, Message) == Message("a", b"here")
        end.close()
