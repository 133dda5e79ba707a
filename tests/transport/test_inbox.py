"""What waits to be taken in is bounded, for each sender and for all."""

import pytest

from edge_fl.transport import inbox as module
from edge_fl.transport.inbox import Inbox
from edge_fl.transport.interface import Connected, Dropped, Event, Message


def taken(inbox: Inbox) -> list[Event]:
    found = []
    while (event := inbox.get(0.0)) is not None:
        found.append(event)
    return found


def test_events_come_in_their_order() -> None:
    inbox = Inbox()
    inbox.put(Connected())
    inbox.put_message("f/up/a", b"1")
    inbox.put_message("f/up/a/chunk/d/0", b"2")
    assert taken(inbox) == [Connected(), Message("f/up/a", b"1"), Message("f/up/a/chunk/d/0", b"2")]


def test_a_flood_costs_its_sender_messages_and_others_none() -> None:
    inbox = Inbox()
    for number in range(1500):
        inbox.put_message(f"f/up/flood/chunk/d/{number}", b"x")
    inbox.put_message("f/up/honest", b"1")
    dropped, *rest = taken(inbox)
    assert dropped == Dropped("f/up/flood", 500)
    assert len(rest) == 1001
    assert rest[-1] == Message("f/up/honest", b"1")
    inbox.put_message("f/up/flood", b"y")  # there is room again
    assert taken(inbox) == [Message("f/up/flood", b"y")]


@pytest.mark.parametrize(
    ("name", "limit"), [("_LONGEST", 99), ("_BYTES_OF_ONE", 250), ("_BYTES", 250), ("_MOST", 2)]
)
def test_bytes_and_messages_have_limits(monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    monkeypatch.setattr(module, name, limit)
    inbox = Inbox()
    for _ in range(3):
        inbox.put_message("f/up/a", bytes(100))
    dropped, *rest = taken(inbox)
    assert dropped == Dropped("f/up/a", 3 if name == "_LONGEST" else 1)
    assert len(rest) == (0 if name == "_LONGEST" else 2)


def test_who_is_one_of_too_many_is_counted_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST", 0)
    monkeypatch.setattr(module, "_MOST_COUNTED", 2)
    inbox = Inbox()
    for number in range(5):
        inbox.put_message(f"f/up/{number}", b"x")
    assert sorted(taken(inbox), key=str) == [Dropped("", 3), Dropped("f/up/0", 1), Dropped("f/up/1", 1)]


def test_nothing_is_remembered_of_who_has_nothing_waiting() -> None:
    inbox = Inbox()
    for number in range(100):
        inbox.put_message(f"f/up/{number}", b"x")
    taken(inbox)
    assert not inbox._count
    assert not inbox._size
    assert (inbox._messages, inbox._bytes) == (0, 0)
