"""The live view in a terminal, and the plain one elsewhere."""

import io
from collections.abc import Callable

import msgspec
from rich.console import Console

from broker.live import view
from broker.observer import Observer
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics, TierScore
from edge_fl.wire.messages import PROTOCOL, Register

CONFIG = RunConfig(
    run="run-1",
    method="fedbiad",
    parameters={},
    rounds=3,
    clients_per_round=2,
    local_steps=1,
    batch=20,
    lr=0.1,
    seed=0,
)
METRICS = RoundMetrics(
    round=1,
    seconds=1.5,
    scores={"accuracy": 0.5},
    loss=1.25,
    train_loss=1.5,
    uplink={"client-a": 544_000},
    downlink={"client-a": 1_500_000, "client-b": 500_000},
    excused={"client-b": "lost"},
    rejections={},
)


def watch(observer: Observer) -> None:
    """A run as a coordinator tells it: two devices, of which one is lost."""
    observer.started(CONFIG, 1_000_000)
    for tier, client in enumerate(("client-a", "client-b")):
        profile = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1, tier=tier)
        observer.registered(client, profile)
    observer.round_started(1, ["client-a", "client-b"])
    observer.device("client-a", "accepted")
    observer.device("client-b", "gone")
    observer.rejected("client-b", "checksum", "The frame's checksum does not match its bytes.", 1)
    observer.round_closed(METRICS)
    observer.round_started(2, ["client-a"])
    observer.device("client-a", "training")


def seen(*, terminal: bool, live: bool = True) -> str:
    text = io.StringIO()
    with view(Console(file=text, force_terminal=terminal, width=120, color_system=None), live=live) as observer:
        watch(observer)
    return text.getvalue()


def test_a_terminal_shows_round_accuracy_bytes_and_a_line_a_device() -> None:
    last = seen(terminal=True).rpartition("round 2/3")[2]
    head = " ".join(last.split())
    assert (
        "(about 3 s left) accuracy 50.0% loss 1.2500 training loss 1.5000 up 544.0 kB down 2.0 MB rejected 1"
        in head
    )
    assert "waiting for 1 of 1, at most 120 s; round 1 went without client-b" in last
    (row,) = [line for line in last.splitlines() if "client-a" in line and "onnx" in line]
    assert [cell.strip() for cell in row.strip("│ \n").split("│")] == [
        "client-a",
        "0",
        "onnx",
        "training",
        "544.0 kB",
        "54%",
    ]
    (row,) = [line for line in last.splitlines() if "client-b" in line and "onnx" in line]
    assert "gone" in row


def test_elsewhere_a_round_is_a_line_and_so_is_each_thing_that_a_device_does() -> None:
    for text in (seen(terminal=False), seen(terminal=True, live=False)):
        lines = text.splitlines()
        assert lines[:3] == [
            "run run-1: fedbiad, 3 rounds of 2 clients",
            "client-a registered: onnx, tier 0, 1 samples  (1 of 2 are here)",
            "client-b registered: onnx, tier 1, 1 samples",
        ]
        assert lines[3:6] == ["round 1: asked 2", "client-a: accepted", "client-b: gone  (1 of 2 are here)"]
        assert lines[6].startswith("rejected client-b (checksum)")
        assert lines[7].endswith("1 update  up 544.0 kB  down 2.0 MB  1.5 s  without client-b")
        assert lines[8:] == ["round 2: asked 1", "client-a: training  (1 of 2 are here)"]


def test_without_devices_a_round_is_a_line() -> None:
    text = io.StringIO()
    with view(Console(file=text, width=200), devices=False) as observer:
        watch(observer)
    first, second, third = text.getvalue().splitlines()
    assert first == "run run-1: fedbiad, 3 rounds of 2 clients"
    assert second.startswith("rejected client-b (checksum)")
    assert third.endswith("without client-b")


def shown(*told: Callable[[Observer], None]) -> str:
    """The last picture of a run that was told this."""
    text = io.StringIO()
    with view(Console(file=text, force_terminal=True, width=120, color_system=None)) as observer:
        for tell in told:
            tell(observer)
    return text.getvalue()


def test_a_run_that_goes_on_tells_its_totals() -> None:
    head = shown(
        lambda observer: observer.started(CONFIG, 1_000_000, (METRICS, METRICS)),
        lambda observer: observer.round_started(3, []),
    )
    assert "up 1.1 MB  down 4.0 MB" in head
    assert "round 3/3 (about 2 s left)  accuracy 50.0%  loss 1.2500" in head


def test_devices_stand_in_their_natural_order() -> None:
    profile = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1)

    def register(observer: Observer) -> None:
        for client in ("d-10", "d-9", "d-1"):
            observer.registered(client, profile)

    text = shown(register)
    assert text.rindex("d-1 ") < text.rindex("d-9 ") < text.rindex("d-10 ")


def test_what_devices_find_stands_beside_the_accuracy() -> None:
    scores = {
        0: TierScore(2, 40, 0.5, {"accuracy": 0.75}, 1000),
        3: TierScore(1, 10, 1.5, {"accuracy": 0.25}, 500),
    }
    scored = msgspec.structs.replace(METRICS, on_devices=scores)
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
        with view(console) as observer:
            observer.started(CONFIG, 1_000_000)
            observer.round_started(1, ["client-a"])
            observer.round_closed(scored)
            observer.round_closed(msgspec.structs.replace(METRICS, round=2, scores={}, loss=None))
        shown = [
            line
            for line in text.getvalue().splitlines()
            if "(on devices accuracy 75.0% in tier 0; accuracy 25.0% in tier 3)" in line
        ]
        assert "accuracy" in shown[-1]
        assert ("round 1/3" in shown[-1]) == terminal


def last_picture(*told: Callable[[Observer], None]) -> str:
    """What a terminal shows after a run of two devices was told of, and ``told``."""
    text = io.StringIO()
    with view(Console(file=text, force_terminal=True, width=100, color_system=None)) as observer:
        watch(observer)
        for tell in told:
            tell(observer)
    return text.getvalue().rpartition("round 2/3")[2]


def test_whom_is_waited_for_between_rounds_is_said_until_the_next_question_or_the_end() -> None:
    def ask(observer: Observer, status: str) -> None:
        for client in ("client-a", "client-b"):
            observer.device(client, status)

    told: list[Callable[[Observer], None]] = [lambda observer: ask(observer, "collecting")]
    assert "collecting: waiting for client-a, client-b; round 1 went" in last_picture(*told)
    told.append(lambda observer: observer.device("client-a", "evaluating"))
    shown = last_picture(*told)
    assert "evaluating: waiting for client-a; round 1 went" in shown
    assert "late" in shown
    told.append(lambda observer: observer.round_closed(METRICS))
    closed = last_picture(*told)
    assert "collecting" not in closed
    assert "evaluating" not in closed
    assert closed.count("late") == 2


def test_scores_that_no_device_gave_leave_none_of_before() -> None:
    scored = msgspec.structs.replace(METRICS, on_devices={0: TierScore(2, 40, 0.5, {"accuracy": 0.75}, 1000)})
    before = last_picture(lambda observer: observer.round_closed(scored))
    assert "accuracy 50.0% (on devices accuracy 75.0% in tier 0)" in before
    after = last_picture(
        lambda observer: observer.round_closed(scored), lambda observer: observer.round_closed(METRICS)
    )
    assert "accuracy 50.0%  loss 1.2500  training loss 1.5000  up" in after


def test_of_a_crowd_those_are_shown_who_need_a_look_and_the_others_counted() -> None:
    text = io.StringIO()
    with view(Console(file=text, force_terminal=True, width=100, height=100, color_system=None)) as observer:
        watch(observer)
        for number in range(1000):
            profile = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1)
            observer.registered(f"device-{number:04}", profile)
        observer.device("device-0999", "failed")
    last = text.getvalue().rpartition("round 2/3")[2]
    rows = [line for line in last.splitlines() if "onnx" in line]
    assert len(rows) == 40
    assert {"client-a", "client-b", "device-0000", "device-0999"} <= {row.strip("│ ").split()[0] for row in rows}
    assert "and 962 more" in last


def test_hundreds_that_a_round_did_without_are_not_all_named() -> None:
    text = io.StringIO()
    with view(Console(file=text, width=400), live=False) as observer:
        observer.started(CONFIG, 1_000_000)
        excused = {f"device-{number:04}": "lost" for number in range(300)}
        observer.round_closed(msgspec.structs.replace(METRICS, excused=excused))
    last = text.getvalue().splitlines()[-1]
    assert last.endswith("device-0008, device-0009 and 290 more")
    assert "device-0010" not in last
