"""The first connection: a broker, something else, nothing."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker.doors import Doors, hashed
from broker.embedded import EmbeddedBroker
from device_sim.emulation.bad_link import BadLink
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.errors import BrokerError, ConfigError
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Disconnected, Message
from edge_fl.wire.messages import Topics


def connection(address: BrokerAddress, *subscriptions: str) -> Connection:
    return Connection(address=address, client_id="test", subscriptions=subscriptions or ["a"])


def test_what_is_published_arrives() -> None:
    with EmbeddedBroker(port=0) as broker:
        end = connection(broker.address, "a/#")
        end.open(timeout=5)
        assert isinstance(end.next(5), Connected)
        left = end.publish("a/b", b"hello")
        assert end.next(5) == Message("a/b", b"hello")
        limit = time.monotonic() + 5
        while not left():
            assert time.monotonic() < limit
        end.close()


def test_what_is_published_as_the_connection_breaks_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker(port=0) as broker:
        end = connection(broker.address)
        end.open(timeout=5)
        assert isinstance(end.next(5), Connected)
    assert isinstance(end.next(5), Disconnected)
    # As it was a moment before: no test can come between the question and the publication.
    monkeypatch.setattr(end._client, "is_connected", lambda: True)

    left = end.publish("a", b"hello")

    assert left()
    end.close()


def test_two_that_share_an_id_take_it_from_each_other_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_fl.transport.connection._RETRY_SECONDS", (0.02, 30))
    with EmbeddedBroker(port=0) as broker:
        ends = [connection(broker.address) for _ in range(2)]
        for end in ends:
            end.open(timeout=5)
        until, sessions = time.monotonic() + 4, 0
        while time.monotonic() < until:
            sessions += sum(isinstance(end.next(0.01), Connected) for end in ends)
        for end in ends:
            end.close()

    assert 4 < sessions < 40  # without a longer pause, some 150


def test_what_ends_sessions_before_it_answers_is_asked_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a balancer before a broker that is down; the first session was a good one."""
    monkeypatch.setattr("edge_fl.transport.connection._RETRY_SECONDS", (0.05, 30))
    with EmbeddedBroker(port=0) as broker:
        end = connection(broker.address)
        end.open(timeout=5)
    attempts = []
    with socket.create_server(("127.0.0.1", broker.address.port)) as dumb:
        dumb.settimeout(0.1)
        until = time.monotonic() + 4
        while time.monotonic() < until:
            with suppress(TimeoutError):
                dumb.accept()[0].close()
                attempts.append(time.monotonic())
    end.close()

    assert 3 < len(attempts) < 12  # with one pause for all, some 50


def test_a_proxy_is_asked_until_its_broker_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_fl.transport.connection._RETRY_SECONDS", (0.05, 0.1))
    behind = BrokerAddress("127.0.0.1", free_port())
    with BadLink(behind) as proxy, ThreadPoolExecutor() as elsewhere:
        end = connection(proxy.address)
        opened = elsewhere.submit(end.open, timeout=10)
        until = time.monotonic() + 5
        while end._early_ends < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        with EmbeddedBroker(port=behind.port):
            opened.result()
            assert isinstance(end.next(1), Connected)  # and nothing of sessions that never were
            end.close()
        stranger = connection(proxy.address)
        with pytest.raises(
            BrokerError, match=r"ends sessions before it answers: it may want mqtts:// \(TLS\), or it is a proxy"
        ):
            stranger.open(timeout=0.5)


def test_a_bad_link_is_waited_for_no_longer_than_seconds() -> None:
    end = Connection(address=BrokerAddress("127.0.0.1", 1), client_id="test", subscriptions=["a"])
    end._short_sessions = 30
    end._pace()

    assert end._client._reconnect_min_delay <= 10.0


def test_a_refusal_is_told_once(tmp_path: Path) -> None:
    users = tmp_path / "passwords"
    users.write_text(f"test:{hashed('right')}\n")
    with EmbeddedBroker(port=0, doors=Doors(passwords=users)) as broker:
        access = Access(user="test", password="right")
        end = connection(replace(broker.listens, access=access), Topics().all)
        end.open(timeout=5)
        assert isinstance(end.next(5), Connected)
        users.write_text("")
        end._client._sock_close()  # type: ignore[attr-defined]
        said = [end.next(10), end.next(10), end.next(1)]
        end.close()
    assert [type(event) for event in said[:2]] == [Disconnected, Disconnected]
    assert said[1] == Disconnected("Not authorized")
    assert said[2] is None


def test_a_listener_that_is_no_broker_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as dumb, pytest.raises(BrokerError, match="does not speak MQTT"):
        connection(BrokerAddress(*dumb.getsockname())).open(timeout=1)


def test_a_broker_without_tls_is_told_from_none() -> None:
    with EmbeddedBroker(port=0) as broker:
        address = replace(broker.address, scheme="mqtts")
        with pytest.raises(BrokerError, match="breaks off TLS: it may be no TLS port, or a proxy"):
            connection(address).open(timeout=1)


@pytest.mark.parametrize(
    "url",
    ["mqtt://user:password@host", "mqtt://host/?a=1", "mqtt://host#x", "mqtt://host/path", "http://host", ""],
)
def test_what_an_address_cannot_say_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        BrokerAddress.parse(url)


def test_an_address_is_read() -> None:
    assert BrokerAddress.parse("mqtt://host") == BrokerAddress("host", 1883)
    assert str(BrokerAddress.parse("mqtt://host:1884/")) == "mqtt://host:1884"
