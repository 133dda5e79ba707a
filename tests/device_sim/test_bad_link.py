"""A link that loses, repeats, delays, damages, stalls and breaks, in front of a real broker."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.embedded import EmbeddedBroker
from device_sim.emulation.bad_link import BadLink, Faults
from device_sim.emulation.mqtt_packets import Splitter, puback, publish_of
from device_sim.simulation.links import Link
from edge_fl.core.errors import ConfigError
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Disconnected, Message

COUNT = 40
QUIET = Faults()


def publish(topic: bytes, identifier: int, payload: bytes, qos: int = 1) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + (identifier.to_bytes(2, "big") if qos else b"") + payload
    length, left = bytearray(), len(body)
    while left or not length:
        left, digit = divmod(left, 128)
        length.append(digit | (0x80 if left else 0))
    return bytes([0x30 | qos << 1]) + bytes(length) + body


@given(st.lists(st.tuples(st.integers(1, 65535), st.binary(max_size=300)), max_size=5), st.integers(1, 50))
def test_a_stream_is_cut_where_packets_end(messages: list[tuple[int, bytes]], step: int) -> None:
    packets = [publish(b"a/b", identifier, payload) for identifier, payload in messages] + [puback(7)]
    stream, splitter = b"".join(packets), Splitter()
    found = [p for i in range(0, len(stream), step) for p in splitter.feed(stream[i : i + step])]
    assert found == packets
    for (identifier, payload), packet in zip(messages, packets, strict=False):
        known = publish_of(packet)
        assert known is not None
        assert (known.identifier, packet[known.payload :]) == (identifier, payload)
    assert publish_of(puback(7)) is None
    assert publish_of(publish(b"a", 0, b"x", qos=0)) is None


def test_what_is_no_mqtt_is_not_waited_for() -> None:
    with pytest.raises(ValueError, match="at most 4 bytes"):
        list(Splitter().feed(b"\x30\xff\xff\xff\xff\x01"))


@contextmanager
def linked(faults: Faults = QUIET, quality: Link | None = None) -> Iterator[tuple[BadLink, Connection]]:
    """A client behind a link, subscribed to what it publishes."""
    with EmbeddedBroker(port=0) as broker, BadLink(broker.address, faults, link=quality, seed=1) as link:
        client = Connection(address=link.address, client_id="c", subscriptions=["t/#"])
        client.open(timeout=10)
        assert isinstance(client.next(5), Connected)
        yield link, client
        client.close()


def received(client: Connection, patience: float = 1.5) -> list[bytes]:
    """Payloads, until none comes for so many seconds."""
    found = []
    while (event := client.next(patience)) is not None:
        if isinstance(event, Message):
            found.append(event.payload)
    return found


def sent(client: Connection) -> list[bytes]:
    payloads = [b"%03d" % i for i in range(COUNT)]
    for payload in payloads:
        client.publish("t/x", payload)
    return payloads


def test_a_link_without_faults_carries_everything_in_order() -> None:
    with linked() as (_, client):
        assert sent(client) == received(client)


def test_lost_messages_are_acknowledged_and_gone() -> None:
    with linked(Faults(drop=0.3)) as (_, client):
        payloads = sent(client)
        found = received(client)
        assert 0 < len(found) < COUNT
        assert set(found) < set(payloads)
        again = sent(client)  # no window is left waiting for an acknowledgement
        assert set(received(client)) < set(again)


def test_messages_come_twice() -> None:
    with linked(Faults(duplicate=0.3)) as (_, client):
        payloads = sent(client)
        found = received(client)
        assert set(found) == set(payloads)
        assert len(found) > COUNT


def test_messages_overtake_each_other() -> None:
    with linked(Faults(delay=0.3, delay_seconds=0.5)) as (_, client):
        payloads = sent(client)
        found = received(client)
        assert sorted(found) == payloads
        assert found != payloads


def test_payloads_are_damaged_and_topics_are_not() -> None:
    with linked(Faults(corrupt=0.3)) as (_, client):
        payloads = sent(client)
        found = received(client)
        assert len(found) == COUNT
        assert set(found) - set(payloads)


def test_rates_are_kept_each_way() -> None:
    with linked(quality=Link(down=0.32, up=0.08)) as (link, client):
        carried = link.carried.copy()
        started = time.monotonic()
        client.publish("t/x", bytes(10_000))
        assert received(client) == [bytes(10_000)]
        assert time.monotonic() - started > 1.0 + 0.25
        assert 10_000 < link.carried["up"] - carried["up"] < 10_100
        assert 10_000 < link.carried["down"] - carried["down"] < 10_100


def test_latency_delays_all() -> None:
    with linked(quality=Link(1000.0, 1000.0, latency=0.4)) as (_, client):
        started = time.monotonic()
        payloads = sent(client)
        assert [event.payload for _ in payloads if isinstance(event := client.next(5), Message)] == payloads
        assert time.monotonic() - started > 0.8


def test_jitter_and_loss_delay_without_overtaking() -> None:
    with linked(quality=Link(1000.0, 1000.0, jitter=0.02, loss=0.3, recovery=0.3)) as (_, client):
        started = time.monotonic()
        payloads = sent(client)
        assert [event.payload for _ in payloads if isinstance(event := client.next(5), Message)] == payloads
        assert time.monotonic() - started > 0.3


def test_a_stall_holds_everything_back_and_a_reset_breaks_off() -> None:
    with linked() as (link, client):
        link.stall(1.0)
        client.publish("t/x", b"late")
        started = time.monotonic()
        assert received(client) == [b"late"]
        assert time.monotonic() - started > 1.0
        link.reset()
        assert isinstance(client.next(5), Disconnected)
        assert isinstance(client.next(10), Connected)


@pytest.mark.parametrize("faults", [{"drop": 1.5}, {"corrupt": -0.1}])
def test_faults_that_make_no_sense_are_refused(faults: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"is in \[0, 1\]"):
        Faults(**faults)
