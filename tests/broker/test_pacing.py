"""What a coordinator does next, decided without a network and without a clock."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from broker.buffered import Buffered
from broker.client_selection import ClientSelection
from broker.pacing import ATTEMPTS, Ask, Devices, Pacing, Synchronous, Wait
from broker.registry import Registry
from broker.rounds import Report, Round
from broker.store import Judged, UnderWay
from edge_fl.core.content import ref_of
from edge_fl.core.errors import RunError
from edge_fl.runs.config import RunConfig
from edge_fl.wire.messages import PROTOCOL, Register, Task

REPORT = Report(samples=1, loss=0.0, size=1)
TASK = Task(
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


def config(**options: Any) -> RunConfig:
    known: dict[str, Any] = {
        "run": "r",
        "method": "fedavg",
        "parameters": {},
        "rounds": 3,
        "clients_per_round": 2,
        "local_steps": 1,
        "batch": 1,
        "lr": 0.1,
        "seed": 0,
        "deadline": 10.0,
        "gone_after": 5.0,
        "wait": 20.0,
        "quorum": 1.0,
    }
    return RunConfig(**(known | options))


def pacing(kind: type[Synchronous] | type[Buffered], **options: Any) -> Pacing:
    made: Pacing = kind(config(**options), ClientSelection("random", 0))
    return made


def registered(*clients: str) -> Registry:
    registry = Registry()
    for client in clients:
        registry.register(client, Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1))
    return registry


def begun(pace: Pacing, now: float = 0.0, number: int = 1, broken_off: UnderWay | None = None) -> Round:
    current = Round(number, number - 1, pace.quorum, 1000.0)
    pace.begin(current, broken_off, now)
    return current


def ask(current: Round, clients: Sequence[str], now: float) -> None:
    """What the coordinator does of an Ask."""
    for client in clients:
        current.ask(client, msgspec.structs.replace(TASK, round=current.number), now)


def asks(pace: Pacing, current: Round, there: Registry, now: float) -> list[str]:
    """The clients of an Ask that is due now, asked."""
    decision = pace.decide(current, there, now)
    assert isinstance(decision, Ask), decision
    ask(current, decision.clients, now)
    return sorted(decision.clients)


def test_a_round_asks_waits_for_all_and_closes() -> None:
    pace, there = pacing(Synchronous, quorum=0.5), registered("a", "b")
    current = begun(pace)
    assert asks(pace, current, there, 0.0) == ["a", "b"]
    current.report("a", REPORT)
    assert isinstance(pace.decide(current, there, 9.9), Wait)
    assert pace.decide(current, there, 10.0) == "close"
    current.report("b", REPORT)
    assert pace.decide(current, there, 0.1) == "close"


def test_a_short_round_waits_for_devices_and_asks_others_first_then_the_same() -> None:
    pace, there = pacing(Synchronous, clients_per_round=3), registered("a", "b", "c")
    current = begun(pace)
    asks(pace, current, there, 0.0)
    current.report("a", REPORT)
    current.excuse("b", "failed: no memory")
    there.register("d", there["a"].profile)
    assert pace.decide(current, there, 10.0) == Devices(2)
    decision = pace.decide(current, there, 11.0)
    assert isinstance(decision, Ask)
    assert (decision.attempt, decision.clients[0], len(decision.clients)) == (1, "d", 2)
    assert decision.clients[1] in ("b", "c")
    assert current.excused["c"] == "late"
    assert current.deadline == 21.0


def test_whose_part_in_a_round_is_done_is_not_asked_again() -> None:
    pace, there = pacing(Synchronous, clients_per_round=3), registered("a", "b", "c")
    current = begun(pace)
    asks(pace, current, there, 0.0)
    current.report("a", REPORT)
    current.excuse("b", "declined: The network is metered.")
    current.parts["b"].rests_until = 30.0
    assert pace.decide(current, there, 10.0) == Devices(2)
    assert asks(pace, current, there, 10.0) == ["c"]


def test_a_round_that_stays_short_ends_the_run() -> None:
    pace, there = pacing(Synchronous), registered("a", "b")
    current = begun(pace)
    for attempt in range(ATTEMPTS):
        assert asks(pace, current, there, 20.0 * attempt) == ["a", "b"]
        assert isinstance(pace.decide(current, there, 20.0 * attempt + 9.0), Wait)
        if attempt < ATTEMPTS - 1:
            assert pace.decide(current, there, 20.0 * attempt + 10.0) == Devices(2)
    with pytest.raises(RunError, match=r"Round 1 got 0 of the 2 updates it needs in 3 attempts"):
        pace.decide(current, there, 20.0 * ATTEMPTS)


def test_what_a_broken_off_round_asked_is_its_attempt() -> None:
    pace, there = pacing(Synchronous), registered("a", "b")
    current = begun(pace, broken_off=UnderWay(1, {"a": TASK, "b": TASK}, {}, Counter()))
    ask(current, ["a", "b"], 0.0)
    current.deadline = 10.0
    assert isinstance(pace.decide(current, there, 1.0), Wait)
    assert pace.decide(current, there, 10.0) == Devices(2)
    decision = pace.decide(current, there, 10.0)
    assert isinstance(decision, Ask)
    assert decision.attempt == 2


def test_the_first_round_waits_for_more_devices_than_the_next() -> None:
    options: dict[str, Any] = {"clients_per_round": 4, "min_clients": 6}
    assert [pacing(Synchronous, quorum=0.5, **options).needed(number) for number in (1, 2)] == [6, 2]
    assert [pacing(Buffered, buffer=1, **options).needed(number) for number in (1, 2)] == [6, 0]


def test_who_is_awaited_as_a_round_closes_is_late_or_lost_to_it() -> None:
    pace, there = pacing(Synchronous, clients_per_round=3), registered("a", "b", "c")
    current = begun(pace)
    asks(pace, current, there, 1.0)
    current.report("a", REPORT)
    current.parts["a"].seconds = 2.0
    there.gone("c", 8.5)
    assert pace.took(current, there, 9.0) == {"a": 2.0, "b": 8.0, "c": 8.0}
    assert current.excused == {"b": "late", "c": "lost"}


def test_a_buffered_round_keeps_its_places_taken_and_closes_at_its_buffer() -> None:
    pace, there = pacing(Buffered, buffer=2), registered("a", "b", "c")
    current = begun(pace)
    first = asks(pace, current, there, 0.0)
    assert isinstance(pace.decide(current, there, 0.0), Wait)
    current.report(first[0], REPORT)
    (other,) = asks(pace, current, there, 1.0)
    assert {*first, other} == {"a", "b", "c"}
    assert isinstance(pace.decide(current, there, 1.0), Wait)
    current.report(other, REPORT)
    assert pace.decide(current, there, 2.0) == "close"
    assert set(pace.took(current, there, 3.0)) == {first[0], other}


def test_who_still_trains_goes_on_with_its_own_task_and_time() -> None:
    pace, there = pacing(Buffered, buffer=1), registered("a", "b")
    current = begun(pace)
    asks(pace, current, there, 1.0)
    current.report("a", REPORT)
    assert pace.decide(current, there, 2.0) == "close"
    pace.took(current, there, 2.0)
    after = begun(pace, now=2.0, number=2)
    assert after.outstanding() == ["b"]
    assert (after.round_of("b"), after.parts["b"].asked_at) == (1, 1.0)
    assert asks(pace, after, there, 2.0) == ["a"]
    assert isinstance(pace.decide(after, there, 11.5), Wait)  # taken after the ask
    assert asks(pace, after, there, 11.5) == ["b"]  # late, and nobody else is left
    assert after.parts["b"].asked_at == 11.5


def test_who_is_lost_leaves_its_place_to_another() -> None:
    pace, there = pacing(Buffered, buffer=2), registered("a", "b")
    current = begun(pace)
    asks(pace, current, there, 0.0)
    there.register("c", there["a"].profile)
    there.gone("a", now=1.0)
    assert isinstance(pace.decide(current, there, 5.9), Wait)
    assert isinstance(pace.decide(current, there, 5.9), Wait)
    assert asks(pace, current, there, 6.0) == ["c"]
    assert current.excused == {"a": "lost"}


def test_a_buffered_round_with_nobody_to_ask_ends_the_run() -> None:
    pace = pacing(Buffered, buffer=2)
    current, nobody = begun(pace), registered()
    assert isinstance(pace.decide(current, nobody, 100.0), Wait)  # the first look, after a long wait for devices
    assert isinstance(pace.decide(current, nobody, 120.0), Wait)
    with pytest.raises(RunError, match="there was nobody to ask"):
        pace.decide(current, nobody, 120.1)


def test_tasks_of_earlier_rounds_do_not_outlive_a_kill_of_a_buffered_run() -> None:
    pace, later = pacing(Buffered, buffer=2), msgspec.structs.replace(TASK, round=2)
    known = UnderWay(0, {"a": TASK, "b": TASK, "c": later}, {"b": Judged("d")}, Counter())
    standing = pace.begin(Round(2, 1, 2, 1000.0), known, 0.0)
    assert standing is not None
    assert set(standing.tasks) == {"b", "c"}
