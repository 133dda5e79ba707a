"""When a round may be closed."""

from pathlib import Path

from broker.registry import Registry
from broker.rounds import Report, Round
from edge_fl.transport.transfer import ref_of
from edge_fl.wire.messages import PROTOCOL, Register, Task

REPORT = Report(Path("x"), samples=1, loss=0.0, size=1)


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
    )
    return Round(1, 0, quorum, deadline=10.0, tasks=dict.fromkeys(clients, task))


def test_a_round_is_open_until_everyone_answered() -> None:
    current = asked("a", "b", "c")
    current.report("a", REPORT)
    current.report("b", REPORT)
    assert current.progress(5.0, set()) == "open"
    current.report("c", REPORT)
    assert current.progress(5.0, set()) == "complete"


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


def test_selection_depends_on_who_is_there_and_on_nothing_else() -> None:
    profile = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1)
    one, other = Registry(), Registry()
    for i in range(20):
        one.register(f"c{i:02}", profile)
        other.register(f"c{19 - i:02}", profile)
    picks = [r.pick(5, seed=1, round=2, attempt=0, excluding=set()) for r in (one, other)]
    assert picks[0] == picks[1]
    assert len(set(picks[0])) == 5
    assert picks[0] != one.pick(5, seed=1, round=3, attempt=0, excluding=set())
    one.gone("c00", now=1.0)
    assert "c00" not in one.pick(20, seed=1, round=2, attempt=0, excluding={"c01"})
    assert len(one.pick(20, seed=1, round=2, attempt=0, excluding={"c01"})) == 18
    assert one.lost(now=10.0, after=9.0) == {"c00"}
    assert one.lost(now=9.0, after=9.0) == set()


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
