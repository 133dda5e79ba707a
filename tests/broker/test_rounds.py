"""When a round may be closed."""

import msgspec

from broker.registry import Device, Registry
from broker.rounds import Report, Round
from edge_fl.core.content import ref_of
from edge_fl.wire.messages import PROTOCOL, Register, Task

REPORT = Report(samples=1, loss=0.0, size=1)


def asked(*clients: str, quorum: int = 2) -> Round:
    task = Task(
        run="r",
        round=1,
        accepted=0,
        model=ref_of(b"x"),
        method="fedavg",
        parameters={},
        steps=1,
        batch=1,
        lr=0.1,
        seed=0,
        tier=0,
    )
    current = Round(1, 0, quorum, 1000.0, deadline=10.0)
    for client in clients:
        current.ask(client, task, 0.0)
    return current


def test_a_round_is_open_until_everyone_answered() -> None:
    current = asked("a", "b", "c")
    current.report("a", REPORT)
    current.report("b", REPORT)
    assert current.progress(5.0, set()) == "open"
    current.report("c", REPORT)
    assert current.progress(5.0, set()) == "complete"


def test_who_declined_is_let_be_for_a_while() -> None:
    current = asked("a", "b")
    current.report("b", REPORT)
    current.excuse("a", "declined: The network is metered.")
    current.parts["a"].rests_until = 8.0
    assert current.unavailable(7.9) == {"a", "b"}
    assert current.unavailable(8.0) == {"b"}


def test_a_lost_or_failed_device_is_not_waited_for() -> None:
    current = asked("a", "b", "c", "d")
    current.report("a", REPORT)
    current.report("b", REPORT)
    current.excuse("c", "failed")
    assert current.progress(5.0, {"d"}) == "complete"
    assert current.progress(5.0, set()) == "open"


def test_the_deadline_closes_a_round_that_has_its_quorum_and_no_other() -> None:
    current = asked("a", "b", "c")
    current.report("a", REPORT)
    assert current.progress(10.0, set()) == "short"
    current.report("b", REPORT)
    assert current.progress(10.0, set()) == "complete"


def test_an_update_of_a_device_given_up_still_counts() -> None:
    current = asked("a", "b")
    current.excuse("a", "late")
    current.report("a", REPORT)
    assert (list(current.reports), current.excused) == (["a"], {})
    current.excuse("a", "late")
    assert not current.excused


def test_who_is_lost_is_not_there() -> None:
    profile = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1)
    registry = Registry()
    for client in ("b", "a", "c"):
        registry.register(client, profile)
    assert registry.present() == ["a", "b", "c"]
    registry.gone("a", now=1.0)
    assert registry.present() == ["b", "c"]
    assert registry.lost(now=10.0, after=9.0) == {"a"}
    assert registry.lost(now=9.0, after=9.0) == set()


def test_those_that_are_there_are_counted() -> None:
    profile = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1)
    registry = Registry()
    for client in "abcd":
        registry.register(client, profile)
    registry.gone("a", now=1.0)
    registry.gone("stranger", now=1.0)
    assert registry.count() == len(registry.present()) == 3
    assert registry.count(besides={"a", "b", "stranger"}) == 2
    registry.heard("a")
    assert registry.count() == 4
    assert registry.lost(now=9.0, after=0.0) == set()


def test_who_is_not_ready_is_there_for_himself_alone() -> None:
    profile = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1)
    able = msgspec.structs.replace(profile, tier=1)
    known = [Device("a", profile), Device("b", able)]
    registry = Registry(known, since=0.0, ready=lambda profile: profile.tier == 1)
    for client in "ab":
        assert registry.heard(client)  # before it registers again
    assert not registry.heard("b")
    assert (registry.present(), registry.count(), registry.unready) == (["b"], 1, 1)
    assert registry.missing()
    registry.register("a", able)
    assert (registry.present(), registry.count(besides={"b"}), registry.unready) == (["a", "b"], 1, 0)
    registry.register("b", profile)
    registry.gone("b", now=1.0)
    assert (registry.present(), registry.count(), registry.unready) == (["a"], 1, 0)


def test_whoever_was_asked_has_taken_as_long_as_it_was_waited_for() -> None:
    current = asked("a", "b", "c")
    current.parts["a"].asked_at = current.parts["b"].asked_at = 1.0
    current.parts["c"].asked_at = None
    current.parts["a"].seconds = 2.0
    current.excuse("b", "failed")
    assert current.took(9.0) == {"a": 2.0, "b": 8.0}  # c was asked by a process that is no more
