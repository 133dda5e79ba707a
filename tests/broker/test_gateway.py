"""The coordinator's side of the protocol against devices that misbehave."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from broker import gateway as gateway_module
from broker.allowance import Allowance
from broker.database import local_url
from broker.final_model import FinalModel
from broker.gateway import Gateway
from broker.observer import Observer
from broker.registry import Registry
from broker.rounds import Round
from broker.run_folder import RunFolder
from broker.store import Store
from broker.tiers import MeasuredTiers, Tiers
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import CHUNK_SIZE, Ref, ref_of
from edge_fl.core.errors import RunError
from edge_fl.core.pattern import Pattern
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.transport.interface import Connected, Message
from edge_fl.transport.memory import MemoryBroker
from edge_fl.transport.transfer import chunks_of, cut
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import (
    PROTOCOL,
    Failed,
    Final,
    Finished,
    FromDevice,
    Gone,
    Hello,
    Keep,
    Measured,
    Offer,
    Refused,
    Register,
    Registered,
    Task,
    ToDevice,
    Topics,
    Verdict,
    Want,
    decode_to_device,
    encode_message,
)

RUN, CLIENT, ROUND, VERSION, SAMPLES = "run-1", "client-1", 4, 3, 100
TOPICS = Topics()
CONFIG = RunConfig(
    run=RUN,
    method="fedbiad",
    parameters={},
    rounds=9,
    clients_per_round=1,
    local_steps=1,
    batch=20,
    lr=0.1,
    seed=0,
)


class Wire:
    """A gateway and one hand-driven device, in this process; :meth:`until` pumps both."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        self.bundle = bundle
        recipe = open_recipe("fedbiad", {"dropout": [500]})
        self.broker = broker = MemoryBroker()
        upstream = broker.session(Gateway.subscriptions(TOPICS))
        self.store = Store(local_url(folder), RUN, b"{}")
        self.folder = RunFolder(folder / "run", CONFIG)
        self._parts = {
            "bundle": bundle,
            "recipe": recipe,
            "batch": 20,
            "most_devices": 10,
            "tiers": Tiers(),
            "folder": self.folder,
            "store": self.store,
            "connection": upstream,
            "topics": TOPICS,
            "observer": Observer(),
        }
        self.take_over()
        down = TOPICS.down(CLIENT)
        self.device = broker.session([TOPICS.all, down, f"{down}/chunk/#"])
        assert isinstance(self.device.next(5), Connected)
        self.close = lambda: (upstream.close(), self.device.close(), self.store.close())
        self.received: list[ToDevice] = []
        self.chunks: dict[int, bytes] = {}
        self.until(lambda: any(isinstance(m, Hello) for m in self.received))

    def take_over(self, **parts: object) -> None:
        """Another gateway, which knows what the store has kept, perhaps with other ``parts``."""
        self.gateway = Gateway(**self._parts | parts)

    def parts(self, run: str) -> dict[str, Any]:
        """Those of a coordinator of another session, for ``run``."""
        folder = RunFolder(self.folder.root.parent / f"beside-{run}", msgspec.structs.replace(CONFIG, run=run))
        connection = self.broker.session(Gateway.subscriptions(TOPICS))
        return {**self._parts, "folder": folder, "connection": connection}

    def send(self, message: FromDevice, client: str = CLIENT) -> None:
        self.device.publish(TOPICS.up(client), encode_message(message))

    def until(self, done: Callable[[], bool]) -> None:
        """Let both sides talk until ``done``; fails after 10 seconds."""
        limit = time.monotonic() + 10
        while not done():
            assert time.monotonic() < limit, (self.received, self.gateway.rejections)
            self.gateway.pump()
            while (event := self.device.next(0.01)) is not None:
                if isinstance(event, Message):
                    self._take(event)

    def _take(self, event: Message) -> None:
        _, _, chunk = TOPICS.parse(event.topic)
        if chunk is None:
            self.received.append(decode_to_device(event.payload))
        else:
            self.chunks[chunk[1]] = event.payload

    def answer(self, kind: type[ToDevice], message: FromDevice) -> ToDevice:
        """Send ``message`` and wait for an answer of ``kind``."""
        self.received.clear()
        self.send(message)
        self.until(lambda: any(isinstance(m, kind) for m in self.received))
        return next(m for m in self.received if isinstance(m, kind))

    def join(self) -> Round:
        """Register, and be asked in a round."""
        self.answer(Registered, register())
        current = Round(ROUND, VERSION, quorum=1, max_change=1000.0)
        model = self.gateway.open_round(current, self.model_frame())
        task = Task(
            run=RUN,
            round=ROUND,
            accepted=0,
            model=model,
            method="fedbiad",
            parameters={},
            steps=1,
            batch=20,
            lr=0.1,
            seed=0,
            tier=0,
        )
        current.ask(CLIENT, task, 0.0)
        return current

    def model_frame(self) -> bytes:
        layout = self.bundle.layout
        header = Header("model", run=RUN, round=ROUND, version=VERSION, layout=layout.digest, method="fedbiad")
        return encode_frame(header, Pattern.full(layout), self.bundle.weights())

    def update(self, pattern: Pattern | None = None, fill: float = 0.01, **changes: object) -> bytes:
        header = Header(
            kind="update",
            run=RUN,
            round=ROUND,
            version=VERSION,
            layout="",
            method="fedbiad",
            mode="rows",
            client=CLIENT,
            samples=SAMPLES,
            loss=1.0,
        )
        delta = {t.name: np.full(t.shape, fill, dtype=np.float32) for t in self.bundle.layout.tensors}
        pattern = pattern if pattern is not None else Pattern.seeded(self.bundle.layout, 500, 1)
        return encode_frame(msgspec.structs.replace(header, **changes), pattern, delta)

    def upload(self, content: bytes) -> Verdict:
        """Offer an update, serve what is wanted of it, and wait for the verdict."""
        ref = ref_of(content)
        self.received.clear()
        self.send(Offer(RUN, ROUND, ref))

        def judged() -> bool:
            for want in [m for m in self.received if isinstance(m, Want)]:
                self.received.remove(want)
                for index, chunk in chunks_of(cut(content), want):
                    self.device.publish(TOPICS.chunk(TOPICS.up(CLIENT), ref.digest, index), chunk)
            return any(isinstance(m, Verdict) for m in self.received)

        self.until(judged)
        return next(m for m in self.received if isinstance(m, Verdict))


def register(**changes: object) -> Register:
    profile = Register(protocol=PROTOCOL, agent="test", runtime="onnx", samples=SAMPLES)
    return msgspec.structs.replace(profile, **changes)


@pytest.fixture
def wire(digits_bundle: Bundle, tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(digits_bundle, tmp_path)
    yield wire
    wire.close()


def test_a_good_update_is_taken_once(wire: Wire) -> None:
    current = wire.join()
    content = wire.update()
    assert wire.upload(content).accepted
    assert current.reports[CLIENT].content() == content
    assert wire.upload(content).accepted  # the verdict was lost: it is given again
    assert len(current.reports) == 1
    assert not wire.gateway.rejections


@pytest.mark.parametrize(
    ("code", "spoil"),
    [
        ("truncated", lambda w: w.update()[:-1]),
        ("magic", lambda w: b"NOPE" + w.update()[4:]),
        ("checksum", lambda w: bytes([*w.update()[:-1], w.update()[-1] ^ 1])),
        ("not-finite", lambda w: w.update(fill=float("nan"))),
        ("not-finite", lambda w: w.update(fill=float("inf"))),
        ("diverged", lambda w: w.update(fill=1001.0)),
        ("diverged", lambda w: w.update(fill=-1001.0)),
        ("pattern", lambda w: w.update(Pattern.full(w.bundle.layout))),
        ("pattern", lambda w: w.update(Pattern.seeded(w.bundle.layout, 600, 1))),
        ("foreign", lambda w: w.update(client="somebody-else")),
        ("stale", lambda w: w.update(round=ROUND - 1)),
        ("stale", lambda w: w.update(version=VERSION + 1)),
        ("stale", lambda w: w.update(run="run-2")),
        ("method", lambda w: w.update(method="fedavg")),
        ("method", lambda w: w.update(mode="units")),
        ("statistics", lambda w: w.update(without_statistics=True)),
        ("samples", lambda w: w.update(samples=SAMPLES + 1)),
        ("samples", lambda w: w.update(samples=0)),
        ("not-finite", lambda w: w.update(loss=float("nan"))),
        ("loss", lambda w: w.update(loss=-1.0)),
        ("loss", lambda w: w.update(loss=1.7e308)),
        ("kind", lambda w: w.model_frame()),
    ],
)
def test_a_bad_update_is_rejected_and_counted(wire: Wire, code: str, spoil: Callable[[Wire], bytes]) -> None:
    current = wire.join()
    verdict = wire.upload(spoil(wire))
    assert (verdict.accepted, verdict.code) == (False, code)
    assert verdict.reason.endswith(".")
    assert wire.gateway.rejections == {code: 1}
    assert not current.reports
    assert not current.outstanding()


@pytest.mark.parametrize(
    ("code", "offer"),
    [
        ("late", Offer(RUN, ROUND - 1, Ref("0" * 64, 10))),
        ("late", Offer(RUN, ROUND + 1, Ref("0" * 64, 10))),
        ("late", Offer("run-2", ROUND, Ref("0" * 64, 10))),
        ("oversize", Offer(RUN, ROUND, Ref("0" * 64, 1 << 32))),
        ("truncated", Offer(RUN, ROUND, Ref("0" * 64, 0))),
    ],
)
def test_an_offer_out_of_place_is_rejected_without_fetching(wire: Wire, code: str, offer: Offer) -> None:
    wire.join()
    verdict = wire.answer(Verdict, offer)
    assert isinstance(verdict, Verdict)
    assert (verdict.accepted, verdict.code) == (False, code)


def test_who_was_not_asked_or_never_registered_is_turned_away(wire: Wire) -> None:
    verdict = wire.answer(Verdict, Offer(RUN, ROUND, Ref("0" * 64, 10)))
    assert isinstance(verdict, Verdict)
    assert verdict.code == "unregistered"
    current = wire.join()
    current.parts.clear()
    verdict = wire.answer(Verdict, Offer(RUN, ROUND, Ref("0" * 64, 10)))
    assert isinstance(verdict, Verdict)
    assert verdict.code == "not-selected"


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("protocol", {"protocol": PROTOCOL + 1}),
        ("profile", {"samples": 0}),
        ("runtime", {"runtime": "ort_training"}),
    ],
)
def test_a_device_that_cannot_take_part_is_told_why(wire: Wire, code: str, changes: dict[str, object]) -> None:
    refused = wire.answer(Refused, register(**changes))
    assert isinstance(refused, Refused)
    assert refused.code == code
    assert not wire.gateway.registry.present()


def test_a_device_that_comes_back_gets_its_task_again(wire: Wire) -> None:
    current = wire.join()
    wire.send(Gone())
    wire.until(lambda: not wire.gateway.registry.present())
    assert wire.answer(Task, register()) == current.parts[CLIENT].task


def test_a_task_is_sent_again_until_the_device_is_heard_of(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.gateway._REMIND_SECONDS", 0.3)
    current = wire.join()
    wire.gateway.ask({CLIENT: current.parts[CLIENT].task})
    wire.until(lambda: wire.received.count(current.parts[CLIENT].task) == 3)
    wire.send(Want(ref_of(wire.model_frame()).digest, (0,)))
    wire.until(lambda: bool(wire.chunks))
    wire.received.clear()
    patience = time.monotonic() + 1
    wire.until(lambda: time.monotonic() > patience)
    assert not wire.received


def test_what_was_judged_is_known_to_a_coordinator_that_takes_over(wire: Wire) -> None:
    current = wire.join()
    assert wire.upload(wire.update()[:-1]).code == "truncated"
    content = wire.update()
    assert wire.upload(content).accepted
    wire.store.ask(0, {CLIENT: current.parts[CLIENT].task})
    known = wire.store.under_way(ROUND)
    assert known is not None
    assert known.judged[CLIENT].verdict(RUN, ROUND) == current.parts[CLIENT].verdict
    assert known.rejections == {"truncated": 1}
    (device,) = Registry(wire.store.devices(), since=1.0).lost(now=3.0, after=2.0)
    assert device == CLIENT


def test_a_device_may_go_on_before_it_registers_with_who_takes_over(wire: Wire) -> None:
    current = wire.join()
    wire.take_over()
    wire.gateway.open_round(current, wire.model_frame())
    assert wire.upload(wire.update()).accepted


def test_content_is_served_by_digest_and_no_other(wire: Wire) -> None:
    wire.join()
    model = wire.model_frame()
    wire.send(Want(ref_of(model).digest, tuple(range(ref_of(model).chunks))))
    wire.until(lambda: len(wire.chunks) == ref_of(model).chunks)
    assert b"".join(wire.chunks[i] for i in sorted(wire.chunks)) == model
    assert wire.gateway.sent == {CLIENT: len(model)}
    assert len(model) <= CHUNK_SIZE
    wire.send(Want("0" * 64, (0,)))
    wire.until(lambda: wire.gateway.rejections["unknown-content"] == 1)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "checksum"),
        (encode_message(Gone())[:-1], "checksum"),
        (bytes(1000), "checksum"),
        (encode_message(Hello(RUN)), "message"),
    ],
)
def test_a_message_that_is_none_is_counted(wire: Wire, payload: bytes, code: str) -> None:
    wire.device.publish(TOPICS.up(CLIENT), payload)
    wire.until(lambda: wire.gateway.rejections[code] == 1)


def test_a_chunk_nobody_asked_for_changes_nothing(wire: Wire) -> None:
    current = wire.join()
    wire.device.publish(TOPICS.chunk(TOPICS.up(CLIENT), "0" * 64, 0), b"noise")
    wire.device.publish(TOPICS.chunk(TOPICS.up("stranger"), "0" * 64, 0), b"noise")
    assert wire.upload(wire.update()).accepted
    assert list(current.reports) == [CLIENT]


def test_an_update_that_comes_after_the_round_was_closed_is_late(wire: Wire) -> None:
    current = wire.join()
    wire.gateway.close_round()
    verdict = wire.upload(wire.update())
    assert (verdict.accepted, verdict.code) == (False, "late")
    assert not current.reports


def test_an_upload_that_a_buffered_run_has_under_way_at_its_end_is_broken_off(wire: Wire) -> None:
    """Its clients are still awaited when the last round closes, so that their uploads would go on."""
    wire.join()
    content = wire.update()
    wire.send(Offer(RUN, ROUND, ref_of(content)))
    wire.until(lambda: any(isinstance(m, Want) for m in wire.received))
    wire.gateway.close_round()
    wire.folder.finish({})  # the file of updates is closed

    wire.gateway.finish(ROUND)
    wire.device.publish(TOPICS.chunk(TOPICS.up(CLIENT), ref_of(content).digest, 0), cut(content)[0])

    assert wire.answer(Finished, register()) == Finished(RUN, ROUND)


def test_no_model_is_given_out_before_a_run_is_over(wire: Wire) -> None:
    wire.join()
    for client, run in ((CLIENT, RUN), (CLIENT, "run-2"), ("stranger", RUN)):
        wire.send(Keep(run), client)
    wire.answer(Registered, register())
    assert not any(isinstance(message, Final) for message in wire.received)


def test_a_lost_acceptance_is_given_again_after_the_round_and_for_that_update_only(wire: Wire) -> None:
    wire.join()
    content = wire.update()
    assert wire.upload(content).accepted
    wire.gateway.close_round()
    assert wire.upload(content).accepted
    assert wire.upload(wire.update(fill=0.02)).code == "late"


def test_a_second_update_of_a_round_is_not_taken(wire: Wire) -> None:
    current = wire.join()
    first = wire.update()
    assert wire.upload(first).accepted
    assert wire.upload(wire.update(fill=0.02)).code == "duplicate"
    assert current.reports[CLIENT].content() == first


def test_a_rejected_update_that_is_offered_again_is_not_waited_for(wire: Wire) -> None:
    current = wire.join()
    bad = wire.update(samples=0)
    wire.upload(bad)
    current.parts[CLIENT].excused = ""
    wire.upload(bad)
    assert not current.outstanding()
    assert current.parts[CLIENT].done


def test_only_the_last_of_many_offers_is_fetched(wire: Wire) -> None:
    wire.join()
    for number in range(50):
        wire.send(Offer(RUN, ROUND, Ref(f"{number:064x}", 10)))
    good = wire.upload(wire.update())
    assert good.accepted
    wire.received.clear()
    wire.gateway.close_round()
    limit = time.monotonic() + 2.5  # longer than the first stall
    wire.until(lambda: time.monotonic() > limit)
    assert not [m for m in wire.received if isinstance(m, Want)]


def test_a_device_that_is_heard_of_is_there(wire: Wire) -> None:
    wire.join()
    wire.send(Gone())
    wire.until(lambda: not wire.gateway.registry.present())
    wire.answer(Verdict, Offer(RUN, ROUND - 1, Ref("0" * 64, 10)))
    assert wire.gateway.registry.present() == [CLIENT]


def test_a_device_is_ready_once_it_has_measured_its_tiers(wire: Wire) -> None:
    config = RunConfig(
        run=RUN,
        method="fedbiad",
        parameters={"dropout": [0, 500]},
        rounds=9,
        clients_per_round=1,
        local_steps=10,
        batch=20,
        lr=0.1,
        seed=0,
        tiers="auto",
    )
    wire.take_over(tiers=MeasuredTiers(config, wire.bundle.layout))
    answer = wire.answer(Registered, register(tier=7))  # which means nothing
    assert isinstance(answer, Registered)
    assert [task.tier for task in answer.rehearsals] == [0, 1]
    assert wire.gateway.registry.count() == 0
    assert wire.answer(Registered, register(measured=Measured("run-0", (0.1,)))) == answer
    assert wire.gateway.registry.count() == 0

    assert wire.answer(Registered, register(measured=Measured(RUN, (0.1, 0.05)))) == answer
    assert wire.gateway.registry.present() == [CLIENT]

    wire.answer(Registered, register())  # it was started anew
    assert wire.gateway.registry.present() == []
    for seconds in ((0.1,), (None, None)):
        refused = wire.answer(Refused, register(measured=Measured(RUN, seconds)))
        assert isinstance(refused, Refused)
        assert refused.code == "profile"


def test_figures_that_nobody_asked_for_are_not_kept(wire: Wire) -> None:
    wire.answer(Registered, register(measured=Measured(RUN, (0.1,) * 64)))
    (device,) = wire.store.devices()
    assert device.profile == register()
    wire.send(register(agent="x" * 1000))
    wire.until(lambda: wire.gateway.rejections == {"message": 1})


def test_a_message_out_of_range_or_that_cannot_be_handled_costs_itself_alone(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    current = wire.join()
    wire.send(register(tier=2**63))
    wire.until(lambda: wire.gateway.rejections == {"message": 1})

    def broken(*_: object) -> None:
        raise OverflowError("Python int too large to convert to SQLite INTEGER")

    with monkeypatch.context() as patched:
        patched.setattr(wire.gateway._intake, "consider", broken)
        wire.send(Offer(RUN, ROUND, Ref("0" * 64, 10)))
        wire.until(lambda: wire.gateway.rejections["fault"] == 1)
    assert "could not be handled" in caplog.text
    assert wire.upload(wire.update()).accepted
    assert list(current.reports) == [CLIENT]


def test_what_a_device_says_moves_no_cursor_and_ends_no_line(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    current = wire.join()
    wire.send(Failed(RUN, ROUND, "14", "no\x1b[2J data\n2026-01-01 ERROR forged" + "x" * 600))
    wire.until(lambda: CLIENT in current.excused)
    assert current.excused[CLIENT].startswith("failed: no [2J data 2026-01-01 ERROR forgedxxx")
    assert len(current.excused[CLIENT]) == len("failed: ") + 500
    assert "\x1b" not in caplog.text


def test_a_client_that_fetches_without_end_is_served_no_more_in_this_round(wire: Wire) -> None:
    wire.join()
    manifest = wire.answer(Registered, register()).manifest
    size = wire.gateway._contents.size
    wire.gateway.sent[CLIENT] = 8 * size - 1  # as after some thousand messages
    for _ in range(3):
        wire.send(Want(manifest.digest, (0,)))
    wire.until(lambda: wire.gateway.rejections["budget"] >= 1)
    assert wire.gateway.sent[CLIENT] <= 8 * size + manifest.size
    wire.gateway.counted()  # the round is closed
    wire.chunks.clear()
    wire.send(Want(manifest.digest, (0,)))
    wire.until(lambda: bool(wire.chunks))


def test_a_second_coordinator_of_a_fleet_ends_and_says_why(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    wire.gateway._began -= 60  # it has been there for a while
    wire.join()
    other = Gateway(**wire.parts(run="run-2"))
    with pytest.raises(
        RunError, match=r"serves this fleet on this broker, with run 'run-1': end it, or .* --fleet"
    ):
        wire.until(lambda: bool(other.pump()))
    assert "another coordinator came, with run 'run-2'" in caplog.text
    assert wire.upload(wire.update()).accepted


def test_a_run_is_not_continued_beside_its_own_coordinator(wire: Wire) -> None:
    wire.gateway._began -= 60
    again = Gateway(**wire.parts(run=RUN))

    def both() -> None:
        for _ in range(20):
            again.pump()
            wire.gateway.pump()

    with pytest.raises(RunError, match="Another coordinator"):
        both()


def test_one_that_lingers_after_its_run_keeps_no_other_out(wire: Wire) -> None:
    wire.gateway._began -= 60
    wire.gateway.finish(9)
    other = Gateway(**wire.parts(run="run-2"))
    for _ in range(20):
        other.pump()
        wire.gateway.pump()


def test_a_flood_of_one_client_is_counted_and_ends_with_its_allowance(wire: Wire) -> None:
    current = wire.join()
    for _ in range(1500):
        wire.send(Failed("another-run", ROUND, "14", "x"))
    wire.until(lambda: wire.gateway.rejections["flood"] >= 400)
    assert not current.excused
    wire.gateway._allowance = Allowance(wire.gateway.registry)  # as some seconds later
    assert wire.upload(wire.update()).accepted


def test_a_farewell_is_no_flood_of_its_own(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    wire.join()
    monkeypatch.setattr(gateway_module, "_LINGER_SECONDS", (0.6, 0.6, 0.6))
    wire.gateway.farewell(9, cast("FinalModel", None))
    assert not wire.gateway.rejections
    said = 0
    while (event := wire.device.next(0.0)) is not None:
        said += isinstance(event, Message) and event.topic == TOPICS.all
    assert 2 <= said <= 5


def test_devices_beyond_the_most_are_refused_and_those_that_are_known_are_not(wire: Wire) -> None:
    wire.take_over(most_devices=1)
    wire.join()
    wire.send(register(), client="another")
    wire.until(lambda: wire.gateway.rejections == {"full": 1})
    assert "another" not in wire.gateway.registry
    assert wire.answer(Registered, register()).run == RUN


def test_a_stranger_who_forges_coordinators_fills_no_memory(wire: Wire) -> None:
    wire.gateway._began -= 60
    for number in range(300):
        wire.device.publish(TOPICS.all, encode_message(Hello(f"forged-{number}")))
    wire.until(lambda: len(wire.gateway._others) >= 100)
    wire.join()
    assert len(wire.gateway._others) == 100


def test_failures_and_wishes_out_of_place_are_counted(wire: Wire) -> None:
    current = wire.join()
    for failed in (
        Failed("run-2", ROUND, "14", "x"),
        Failed(RUN, ROUND + 1, "14", "x"),
        Failed(RUN, ROUND, "14", "x", "evaluate"),
    ):
        wire.send(failed)
    wire.send(Failed(RUN, ROUND, "14", "x"), client="nobody")
    wire.send(Keep("run-2"))
    wire.send(Keep(RUN), client="nobody")
    wire.until(lambda: wire.gateway.rejections == {"late": 6})
    assert not current.excused
    for _ in range(2):  # said again, as it may have been lost
        wire.send(Failed(RUN, ROUND, "14", "x"))
    wire.send(Keep(RUN))  # too early: it asks again
    wire.answer(Registered, register())
    assert CLIENT in current.excused
    assert wire.gateway.rejections == {"late": 6}


def test_a_registration_that_changes_without_end_is_refused(wire: Wire) -> None:
    wire.join()
    for number in range(100):
        wire.send(register(platform=str(number)))
    wire.until(lambda: wire.gateway.rejections["flood"] >= 70)
    wire.gateway._allowance = Allowance(wire.gateway.registry)  # as some seconds later
    assert wire.answer(Registered, register(platform="new"))
