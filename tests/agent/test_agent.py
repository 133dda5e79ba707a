"""The agent against a coordinator driven by hand, over a real broker."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from broker.embedded import EmbeddedBroker
from edge_fl.agent import conversation
from edge_fl.agent.agent import Agent, AgentSettings
from edge_fl.compressors.base import DECODERS
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import DataError, FrameError, RefusedError
from edge_fl.core.pattern import Pattern
from edge_fl.data.held_out import HeldOut
from edge_fl.data.sources.base import open_source
from edge_fl.methods.base import METHODS
from edge_fl.metrics.classification import TopK
from edge_fl.recipes.own import use_code
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.evaluation import score
from edge_fl.training.update import make_update
from edge_fl.wire.downlink import decode_model, follow
from edge_fl.wire.messages import (
    Evaluate,
    Evaluated,
    Failed,
    Finished,
    Gone,
    Hello,
    Offer,
    Refused,
    Register,
    Registered,
    Verdict,
    Want,
)
from tests.agent.stage import CLIENT, RUN, Stage, frame

MOODY = """
from pathlib import Path
import numpy as np
def read():
    mood = (Path(__file__).parent / "mood").read_text()
    x = np.zeros((int(mood), 1, 8, 8), np.float32)
    return x, np.arange(len(x)) % 10
"""


@pytest.fixture
def stage(digits_bundle: Bundle, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Of an agent that is there for one run, unless a test says otherwise."""
    with EmbeddedBroker(port=0) as broker:
        once = getattr(request, "param", True)
        stage = Stage(digits_bundle, broker.address, tmp_path, "digits:0/10", once=once)
        yield stage
        if not stage.ended:
            stage.say(Registered(RUN, stage.manifest))
            stage.say(Finished(RUN, 1))
            stage.until(lambda: bool(stage.ended))
        stage.close()


@pytest.fixture
def judging(digits_bundle: Bundle, tmp_path: Path) -> Iterator[Stage]:
    """An agent that holds a quarter of its samples out."""
    with EmbeddedBroker(port=0) as broker:
        stage = Stage(digits_bundle, broker.address, tmp_path / "judging", "digits:0/10", test_share=0.25)
        yield stage
        stage.say(Finished(RUN, 1))
        stage.until(lambda: bool(stage.ended))
        stage.close()


@pytest.fixture
def moody(digits_bundle: Bundle, tmp_path: Path) -> Iterator[Stage]:
    """An agent whose source is Python that a test has raise, or give more: it obeys the file ``mood``."""
    (tmp_path / "mine.py").write_text(MOODY)
    (tmp_path / "mood").write_text("20")
    with EmbeddedBroker(port=0) as broker:
        stage = Stage(digits_bundle, broker.address, tmp_path, f"python:{tmp_path}/mine.py:read")
        yield stage
        stage.say(Finished(RUN, 1))
        stage.until(lambda: bool(stage.ended))
        stage.close()


def test_a_device_whose_data_does_not_fit_says_that_it_goes(digits_bundle: Bundle, tmp_path: Path) -> None:
    """A coordinator that heard nothing would wait for it, round by round."""
    (tmp_path / "a.csv").write_text("x,label\n1,0\n")
    with EmbeddedBroker(port=0) as broker:
        stage = Stage(digits_bundle, broker.address, tmp_path, f"csv:{tmp_path / 'a.csv'}")
        stage.join()
        stage.hears(Gone)
        stage.until(lambda: bool(stage.ended))
        assert isinstance(stage.ended[0], DataError)
        stage.close()


def test_a_device_that_nobody_answers_says_so_once(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_fl.agent.conversation._UNANSWERED_SECONDS", 0.3)
    stage.until(lambda: "no coordinator answers 'client-1'" in caplog.text)
    stage.hears(Register, 2)
    assert caplog.text.count("no coordinator answers") == 1


def test_a_device_whose_coordinator_answers_no_more_says_so_once(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that turns it away meanwhile, as its certificate was revoked, or one that has ended."""
    stage.join()
    monkeypatch.setattr("edge_fl.agent.conversation._REGISTER_SECONDS", (5.0, 0.1))
    heard = len(stage.heard)
    stage.until(lambda: "the coordinator no longer answers 'client-1'" in caplog.text)
    stage.until(lambda: len(stage.heard) > heard + 6)
    assert caplog.text.count("no longer answers") == 1
    stage.join()
    stage.until(lambda: caplog.text.count("no longer answers") == 2)


def test_a_device_that_believes_another_coordinator_says_so(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disbelieves(*_: object) -> None:
        raise FrameError("signature", "The message is not signed by whom it should be.")

    monkeypatch.setattr("edge_fl.agent.envelope.BareEnvelope.open", disbelieves)
    stage.hears(Register)
    stage.say(Hello(RUN))
    stage.until(lambda: "ignored a message" in caplog.text)
    monkeypatch.setattr("edge_fl.agent.conversation._UNANSWERED_SECONDS", 0.3)
    stage.until(lambda: "is no coordinator that its identity believes" in caplog.text)
    assert "no coordinator answers" not in caplog.text


def test_an_unanswered_registration_is_repeated(stage: Stage) -> None:
    stage.hears(Register, 2, limit=8)


def test_the_end_of_another_run_is_not_its_own(stage: Stage) -> None:
    stage.join()
    stage.say(Finished("run-2", 9))
    stage.say(stage.task(run="run-2"))
    stage.say(stage.task())
    stage.until(lambda: Want("0" * 64, (0,)) in stage.heard)  # it goes on with the task of its own run
    assert not stage.ended
    stage.say(Finished(RUN, 1))
    stage.until(lambda: bool(stage.ended))
    assert stage.ended == [None]


def test_a_task_of_an_earlier_round_is_a_latecomer(stage: Stage) -> None:
    stage.join()
    newer = stage.task(round=5, model=ref_of(b"newer"))
    stage.say(newer)
    stage.until(lambda: stage.wanted(newer.model))
    stage.say(stage.task(round=4))
    stage.say(stage.task(round=5, model=ref_of(b"again")))  # another attempt at the same round
    stage.until(lambda: stage.wanted(ref_of(b"again")))
    assert not stage.wanted(stage.task().model)


def test_a_refusal_ends_a_device_that_is_there_for_one_run(stage: Stage) -> None:
    stage.join()
    stage.say(stage.task())
    stage.until(lambda: Want("0" * 64, (0,)) in stage.heard)
    stage.say(Refused("profile", "It registers 0 samples."))
    stage.until(lambda: bool(stage.ended))
    assert isinstance(stage.ended[0], RefusedError)


@pytest.mark.parametrize("stage", [False], indirect=True)
def test_another_device_waits_for_a_run_that_wants_it_and_says_why_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.join()
    stage.say(stage.task())
    stage.until(lambda: Want("0" * 64, (0,)) in stage.heard)
    for _ in range(2):
        stage.say(Refused("runtime", "The bundle has no program for it."))
    stage.say(Hello("run-2", "process-2"))  # has a device register at once
    stage.until(lambda: sum(isinstance(message, Register) for message in stage.heard) > 1)
    assert [r.getMessage() for r in caplog.records if "waits for another run" in r.getMessage()] == [
        "The coordinator refused 'client-1': The bundle has no program for it. This device waits for another run."
    ]
    stage.join()
    stage.say(Refused("protocol", "It speaks protocol 1, not 2."))
    stage.until(lambda: bool(stage.ended))
    assert isinstance(stage.ended[0], RefusedError)


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("4294967296 bytes", {"model": Ref("0" * 64, 2**32)}),
        ("fewer than its own prelude", {"model": ref_of(b"")}),
    ],
)
def test_a_task_that_cannot_be_done_is_told(stage: Stage, reason: str, changes: dict[str, object]) -> None:
    stage.join()
    stage.say(stage.task(**changes))
    stage.hears(Failed)
    (failed,) = [message for message in stage.heard if isinstance(message, Failed)]
    assert reason in failed.reason
    assert not stage.ended


@pytest.mark.parametrize("name", ["mine.py:Mine", "package.module:Mine", "../fedavg", "fedavg+mine.py:Mine"])
def test_a_task_that_names_code_is_refused_and_the_device_lives_on(
    digits_bundle: Bundle, stage: Stage, name: str
) -> None:
    stage.join()
    model = stage.give(frame(digits_bundle, "model", 0, digits_bundle.weights()))
    stage.say(stage.task(method=name, model=model))
    stage.hears(Failed)
    failed = next(message for message in stage.heard if isinstance(message, Failed))
    assert failed.code == "15"
    assert "no code comes with a task" in failed.reason
    stage.say(stage.task(round=2, model=stage.give(frame(digits_bundle, "model", 1, digits_bundle.weights()))))
    stage.offered(2)


def test_a_method_of_the_owners_that_raises_costs_its_task_alone(
    digits_bundle: Bundle, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS, "_used", {})  # no other test is to know the method
    (tmp_path / "own.py").write_text(
        "from edge_fl.methods.fedavg import METHOD\n"
        "class Raises(METHOD):\n"
        "    name = 'raises'\n"
        "    def local(self, job):\n"
        "        return 1 / 0\n"
    )
    use_code([f"{tmp_path}/own.py:Raises"])
    stage.join()
    model = stage.give(frame(digits_bundle, "model", 0, digits_bundle.weights(), method="raises"))
    stage.say(stage.task(method="raises", model=model))
    stage.hears(Failed)
    failed = next(message for message in stage.heard if isinstance(message, Failed))
    assert failed.reason == f"ZeroDivisionError in '{tmp_path}/own.py', line 5: division by zero."
    stage.say(stage.task(round=2, model=stage.give(frame(digits_bundle, "model", 1, digits_bundle.weights()))))
    stage.offered(2)


def test_a_device_fetches_the_changes_since_its_model_and_those_alone(digits_bundle: Bundle, stage: Stage) -> None:
    weights = digits_bundle.weights()
    models = [frame(digits_bundle, "model", 0, weights)]
    small = {name: 0.01 * tensor for name, tensor in weights.items()}
    changes = [frame(digits_bundle, "change", version, small) for version in (1, 2)]
    models += [follow(models[0], changes[:n], digits_bundle.layout, DECODERS) for n in (1, 2)]
    stage.join()
    stage.say(stage.task(model=stage.give(models[0]), changes=()))
    stage.offered(1)
    stage.say(stage.task(round=2, model=ref_of(models[1]), since=0, changes=(stage.give(changes[0]),)))
    stage.offered(2)
    both = (ref_of(changes[0]), stage.give(changes[1]))  # it has followed the first: it holds a later model
    stage.heard.clear()
    stage.say(stage.task(round=3, model=ref_of(models[2]), since=0, changes=both))
    stage.offered(3)
    assert not stage.wanted(both[0])
    assert not stage.wanted(ref_of(models[2]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"kind": "update"},
        {"kept": 500},
        {"run": "another"},
        {"factor": 2.0},
        {},
    ],
    ids=str,
)
def test_changes_that_lead_elsewhere_are_given_up_for_the_model(
    digits_bundle: Bundle, stage: Stage, wrong: dict[str, object]
) -> None:
    weights = digits_bundle.weights()
    first = frame(digits_bundle, "model", 0, weights)
    small = {name: np.float32(0.01) * tensor for name, tensor in weights.items()}
    model = follow(first, [frame(digits_bundle, "change", 1, small)], digits_bundle.layout, DECODERS)
    fields: dict[str, object] = {"kind": "change", "version": 1, "weights": small, **wrong}
    if "factor" in fields:
        fields["weights"] = {name: fields["factor"] * tensor for name, tensor in small.items()}
        del fields["factor"]
    if "kept" in fields:
        fields["kept"] = Pattern.prefix(digits_bundle.layout, 500)
    change = frame(digits_bundle, **fields) if wrong else b"no frame at all"  # type: ignore[arg-type]
    stage.join()
    stage.say(stage.task(model=stage.give(first), changes=()))
    stage.offered(1)
    stage.say(stage.task(round=2, model=stage.give(model), since=0, changes=(stage.give(change),)))
    stage.offered(2)
    assert stage.wanted(ref_of(model))


def test_a_change_is_not_trained_on_as_a_model(digits_bundle: Bundle, stage: Stage) -> None:
    stage.join()
    change = frame(digits_bundle, "change", 0, digits_bundle.weights())
    stage.say(stage.task(model=stage.give(change)))
    stage.hears(Failed)
    assert "is a change, not a model" in next(m.reason for m in stage.heard if isinstance(m, Failed))


def test_a_source_that_raises_fails_its_task_and_no_more(
    digits_bundle: Bundle, moody: Stage, tmp_path: Path
) -> None:
    moody.join()
    for number, mood, sentence in (
        (1, "the sensor is gone", "mine.py:read' raised ValueError: invalid literal"),
        (2, "0", "mine.py:read' holds no samples."),
    ):
        (tmp_path / "mood").write_text(mood)
        moody.say(moody.task(round=number))
        moody.hears(Failed, number)
        failed = moody.heard[-1]
        assert isinstance(failed, Failed)
        assert (failed.round, failed.code) == (number, "14")
        assert sentence in failed.reason
    (tmp_path / "mood").write_text("20")
    model = frame(digits_bundle, "model", 2, digits_bundle.weights())
    moody.say(moody.task(round=3, model=moody.give(model)))
    moody.offered(3)
    assert {m.samples for m in moody.heard if isinstance(m, Register)} == {20}


def test_data_that_grows_is_registered_before_it_is_trained_on(
    digits_bundle: Bundle, moody: Stage, tmp_path: Path
) -> None:
    moody.join()
    (tmp_path / "mood").write_text("30")
    moody.say(moody.task(model=moody.give(frame(digits_bundle, "model", 0, digits_bundle.weights()))))
    moody.offered(1)
    kinds = [m.samples if isinstance(m, Register) else type(m) for m in moody.heard]
    assert kinds.index(20) < kinds.index(30) < kinds.index(Offer)


def test_a_model_is_evaluated_on_what_is_held_out_and_trained_without_being_fetched_again(
    digits_bundle: Bundle, judging: Stage
) -> None:
    weights = digits_bundle.weights()
    data = HeldOut(open_source("digits:0/10"), 0.25, CLIENT).split()
    judging.join()
    registered = next(m for m in judging.heard if isinstance(m, Register))
    assert (registered.samples, registered.test_samples) == data.sizes
    model = judging.give(frame(digits_bundle, "model", 1, weights))
    judging.say(asked := Evaluate(RUN, 1, model, width=500, statistics=500, batch=20, scores=("top-2",)))
    judging.hears(Evaluated)
    runtime = open_runtime("onnx", digits_bundle)
    expected = score(runtime, weights, data.test, (TopK(2),), width=500, statistics=500, batch=20)
    answer = Evaluated(RUN, 1, len(data.test.y), expected.loss, {"top-2": tuple(expected.sums["top-2"].tolist())})
    assert judging.heard[-1] == answer
    judging.heard.clear()
    judging.say(asked)  # its answer was lost
    judging.hears(Evaluated)
    assert judging.heard == [answer]
    judging.say(task := judging.task(round=2, model=model))
    judging.offered(2)
    assert not judging.wanted(model)
    start = decode_model(judging.given(model), digits_bundle.layout, run=RUN, round=2)
    update = make_update(task, client=CLIENT, model=start, runtime=runtime, samples=data.train, state={})
    assert next(m.update for m in judging.heard if isinstance(m, Offer)) == ref_of(update.frame)


def test_an_evaluation_is_left_for_the_next_round_and_one_that_came_late_is_not_begun(
    digits_bundle: Bundle, judging: Stage
) -> None:
    judging.join()
    judging.say(Evaluate(RUN, 1, ref_of(b"nobody has it"), width=1000, statistics=1000, batch=20))
    judging.until(lambda: judging.wanted(ref_of(b"nobody has it")))
    judging.say(
        judging.task(round=2, model=judging.give(frame(digits_bundle, "model", 1, digits_bundle.weights())))
    )
    judging.offered(2)
    judging.say(Evaluate(RUN, 1, ref_of(b"of round 1"), width=1000, statistics=1000, batch=20))
    model = judging.give(frame(digits_bundle, "model", 2, digits_bundle.weights()))
    judging.say(Evaluate(RUN, 2, model, width=1000, statistics=1000, batch=20))
    judging.hears(Evaluated)
    assert not judging.wanted(ref_of(b"of round 1"))


def test_what_cannot_be_evaluated_is_told(digits_bundle: Bundle, stage: Stage, judging: Stage) -> None:
    weights = digits_bundle.weights()
    stale = frame(digits_bundle, "model", 0, weights)
    hopeless = frame(digits_bundle, "model", 1, {name: np.full_like(w, 1e30) for name, w in weights.items()})
    stage.join()
    judging.join()
    for where, content, code, sentence in (
        (stage, stale, "14", "No sample of this device is held out"),
        (judging, stale, "20", "is for round 1 of run"),
        (judging, hopeless, "19", "held-out data is"),
    ):
        where.heard.clear()
        where.say(Evaluate(RUN, 1, where.give(content), width=1000, statistics=1000, batch=20))
        where.hears(Failed)
        failed = where.heard[-1]
        assert isinstance(failed, Failed)
        assert (failed.round, failed.code, failed.what) == (1, code, "evaluate")
        assert sentence in failed.reason


def test_an_evaluation_that_failed_is_not_tried_again_for_every_reminder(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.join()
    asked = Evaluate(RUN, 1, ref_of(b"of nothing that is held out"), width=1000, statistics=1000, batch=20)
    for times in (1, 2, 3):
        stage.say(asked)
        stage.until(lambda times=times: sum(isinstance(m, Failed) for m in stage.heard) == times)
    assert [r.message for r in caplog.records if "failed to evaluate" in r.message] == [
        "round 1: failed to evaluate: No sample of this device is held out; start it with a --test-share."
    ]


def test_rehearsals_are_timed_and_told_and_come_before_any_task(digits_bundle: Bundle, stage: Stage) -> None:
    half = stage.task(method="fjord", parameters={"widths": [500]})
    stage.join(stage.task(), half, stage.task(batch=7, method="there-is-none"))
    stage.until(lambda: isinstance(stage.heard[-1], Register) and stage.heard[-1].measured is not None)
    (told,) = [m.measured for m in stage.heard if isinstance(m, Register) and m.measured is not None]
    assert told.run == RUN
    assert told.step_seconds[2] is None
    assert all(seconds is not None and 0 < seconds < 1 for seconds in told.step_seconds[:2])
    stage.say(stage.task(model=stage.give(frame(digits_bundle, "model", 0, digits_bundle.weights()))))
    stage.offered(1)


def test_two_devices_of_one_id_are_told(stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage.hears(Register)
    settings = AgentSettings(broker=stage.address, client=CLIENT, state=tmp_path / "other", once=True)
    other = threading.Thread(target=Agent(settings, open_source("digits:1/10")).run)
    other.start()
    stage.until(
        lambda: "does another device use the id 'client-1'? Enrol one of them under another" in caplog.text,
        limit=60,
    )

    def over() -> bool:
        """Tell whoever is connected."""
        stage.say(Registered(RUN, stage.manifest))
        stage.say(Finished(RUN, 1))
        return bool(stage.ended) and not other.is_alive()

    stage.until(over, limit=60)
    assert stage.ended == [None]


def test_a_bundle_that_nobody_gives_out_is_given_up(
    digits_bundle: Bundle, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stranger on the broker may announce one in the coordinator's name."""
    monkeypatch.setattr(conversation, "_SILENCE_SECONDS", 1.0)
    stage.hears(Register)
    stage.say(Registered("another-run", Ref("1" * 64, 1000)))
    stage.hears(Register, 2)
    stage.join()
    trains(stage, digits_bundle)


def test_a_model_that_nobody_gives_out_is_given_up(
    digits_bundle: Bundle, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.join()
    monkeypatch.setattr(conversation, "_SILENCE_SECONDS", 1.0)
    before = sum(isinstance(m, Register) for m in stage.heard)
    stage.say(stage.task(round=2**31 - 1, model=Ref("1" * 64, 1000)))
    stage.hears(Register, before + 1)
    stage.say(Registered(RUN, stage.manifest))
    trains(stage, digits_bundle)


def test_a_model_that_nobody_gives_out_is_given_up_for_another_run(stage: Stage) -> None:
    """At once: a run that has its devices measured first gives no task before."""
    stage.join()
    stage.say(stage.task(model=Ref("1" * 64, 1000)))
    stage.until(lambda: stage.wanted(Ref("1" * 64, 1000)))
    another = Registered("run-2", stage.manifest, (stage.task(run="run-2"),))

    def measured() -> bool:
        return any(isinstance(m, Register) and m.measured is not None for m in stage.heard)

    stage.say(another)
    stage.until(measured)


def test_a_round_that_was_never_asked_keeps_no_other_out(digits_bundle: Bundle, stage: Stage) -> None:
    stage.join()
    forged = 2**31 - 1
    model = stage.give(frame(digits_bundle, "model", forged - 1, digits_bundle.weights()))
    stage.say(stage.task(round=forged, model=model))
    stage.offered(forged)
    offer = next(m for m in stage.heard if isinstance(m, Offer))
    stage.say(Verdict(RUN, forged, offer.update.digest, accepted=False, code="late", reason="No such round."))
    trains(stage, digits_bundle)


@pytest.mark.parametrize(
    "manifest",
    [b"no manifest", b"{}", b"[" * 10_000, b'{"schema": 1e999}'],
    ids=["bytes", "empty", "deep", "number"],
)
def test_a_bundle_that_is_none_fails_its_tasks_and_the_device_lives_on(
    digits_bundle: Bundle, stage: Stage, manifest: bytes
) -> None:
    stage.hears(Register)
    stage.say(Registered(RUN, stage.give(manifest)))
    stage.until(lambda: stage.wanted(ref_of(manifest)))
    for number in (1, 2):
        stage.say(stage.task(round=number))
        stage.hears(Failed, number)
    assert {m.code for m in stage.heard if isinstance(m, Failed)} == {"13"}
    stage.say(Registered(RUN, stage.manifest))
    stage.until(lambda: stage.wanted(stage.manifest))
    model = stage.give(frame(digits_bundle, "model", 2, digits_bundle.weights()))
    stage.say(stage.task(round=3, model=model))
    stage.offered(3)


def trains(stage: Stage, bundle: Bundle) -> None:
    """The device trains the first round after all."""
    model = stage.give(frame(bundle, "model", 0, bundle.weights()))
    task = stage.task(model=model)

    def offered() -> bool:
        stage.say(task)
        return any(isinstance(m, Offer) and m.round == 1 for m in stage.heard)

    stage.until(offered, limit=20)
