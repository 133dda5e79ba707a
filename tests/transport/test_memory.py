"""A broker inside one process hands out as MQTT does."""

from edge_fl.transport.interface import Connected, Message, Transport
from edge_fl.transport.memory import MemoryBroker


def taken(session: Transport) -> list[object]:
    found = []
    while (event := session.next(0.0)) is not None:
        found.append(event)
    return found


def test_messages_go_to_whoever_subscribed_in_order_and_once() -> None:
    broker = MemoryBroker()
    one, every, deep = broker.session(["a/+/up"]), broker.session(["a/#", "a/b/up"]), broker.session(["a/b/#"])
    assert taken(one) == taken(every) == taken(deep) == [Connected()]
    assert one.publish("a/b/up", b"1")()
    every.publish("a/c/up", b"2")
    deep.publish("x/b/up", b"3")
    assert taken(one) == taken(every) == [Message("a/b/up", b"1"), Message("a/c/up", b"2")]
    assert taken(deep) == [Message("a/b/up", b"1")]


def test_who_has_left_gets_no_more() -> None:
    broker = MemoryBroker()
    gone, stays = broker.session(["t"]), broker.session(["t"])
    gone.close()
    stays.publish("t", b"x")
    assert taken(gone) == [Connected()]
    assert taken(stays) == [Connected(), Message("t", b"x")]
