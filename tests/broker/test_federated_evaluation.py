"""Scores of devices that misbehave, or never come."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from broker.federated_evaluation import FederatedEvaluator
from broker.model import GlobalModel
from broker.score_round import ScoreRound
from broker.tiers import Tiers
from edge_fl.aggregation.bounds import Bounds
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref
from edge_fl.core.errors import FrameError
from edge_fl.data.registry import Samples, load_dataset
from edge_fl.metrics.classification import TopK
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.metrics import TierScore
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.evaluation import evaluated
from edge_fl.training.evaluator import Evaluator
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import Evaluate, Evaluated, Failed, Registered
from tests.broker.test_gateway import CLIENT, CONFIG, ROUND, RUN, Wire, register
from tests.e2e.test_final_model import plain_outputs

HELD_OUT = 20
TASK = Evaluate(RUN, ROUND, Ref("0" * 64, 10), width=1000, statistics=1000, batch=20)
GOOD = Evaluated(RUN, ROUND, HELD_OUT, 0.5, {"accuracy": (0.75 * HELD_OUT, float(HELD_OUT))})


@pytest.fixture
def wire(digits_bundle: Bundle, tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(digits_bundle, tmp_path)
    wire.answer(Registered, register(test_samples=HELD_OUT))
    yield wire
    wire.close()


def asked(wire: Wire) -> ScoreRound:
    """The client is asked for a score."""
    current = ScoreRound(
        ROUND, tasks={CLIENT: TASK}, tiers={CLIENT: 2}, metrics=(TopK(),), manifest=wire.bundle.manifest
    )
    wire.gateway.polling.open(current)
    wire.until(lambda: TASK in wire.received)
    return current


def test_a_good_score_is_taken_once_and_may_be_repeated(wire: Wire) -> None:
    current = asked(wire)
    for _ in range(2):
        wire.send(GOOD)
    wire.send(msgspec.structs.replace(GOOD, loss=0.25))
    wire.until(lambda: bool(wire.gateway.rejections))
    current.closed = True
    wire.send(GOOD)  # as if it had been thought lost
    wire.send(msgspec.structs.replace(GOOD, round=ROUND - 1))
    wire.until(lambda: len(wire.gateway.rejections) == 2)
    assert wire.gateway.rejections == {"duplicate": 1, "late": 1}
    assert current.by_tier() == {2: TierScore(1, HELD_OUT, 0.5, {"accuracy": 0.75}, 1000)}


def test_who_claims_samples_without_end_counts_for_some_times_the_median() -> None:
    answers = dict.fromkeys(("a", "b"), GOOD)
    answers["c"] = Evaluated(RUN, ROUND, 1_000_000, 3.5, {"accuracy": (0.0, 1_000_000.0)})
    current = ScoreRound(
        ROUND,
        tasks=dict.fromkeys("abc", TASK),
        tiers=dict.fromkeys("abc", 0),
        metrics=(TopK(),),
        answers=answers,
        bounds=Bounds(samples=2),
    )
    assert current.by_tier() == {0: TierScore(3, 4 * HELD_OUT, 2.0, {"accuracy": 0.375}, 1000)}


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("not-finite", {"loss": float("nan")}),
        ("not-finite", {"loss": float("inf")}),
        ("loss", {"loss": -1.0}),
        ("loss", {"loss": 1.7e308}),  # a sum over its samples would be infinite
        ("sums", {"sums": {"accuracy": (2.0 * HELD_OUT, HELD_OUT)}}),
        ("sums", {"sums": {"accuracy": (-1.0, HELD_OUT)}}),
        ("sums", {"sums": {"accuracy": (float("nan"), HELD_OUT)}}),
        ("sums", {"sums": {"accuracy": (1.0, 2.0 * HELD_OUT)}}),
        ("sums", {"sums": {"accuracy": (1.0,)}}),
        ("sums", {"sums": {}}),
        ("sums", {"sums": {"accuracy": (1.0, HELD_OUT), "mae": (1.0, HELD_OUT)}}),
        ("samples", {"samples": 0}),
        ("samples", {"samples": HELD_OUT + 1}),
    ],
)
def test_a_bad_score_is_counted_and_changes_nothing(wire: Wire, code: str, changes: dict[str, object]) -> None:
    current = asked(wire)
    wire.send(msgspec.structs.replace(GOOD, **changes))
    wire.until(lambda: bool(wire.gateway.rejections))
    assert wire.gateway.rejections == {code: 1}
    assert [(r.round, r.client, r.code) for r in wire.store.rejected()] == [(ROUND, CLIENT, code)]
    assert not current.outstanding()
    assert current.by_tier() == {}


@pytest.mark.parametrize(
    ("code", "changes", "client"),
    [
        ("late", {"round": ROUND - 1}, CLIENT),
        ("late", {"run": "run-2"}, CLIENT),
        ("not-selected", {}, "client-2"),
        ("unregistered", {}, "client-3"),
    ],
)
def test_a_score_out_of_place_is_turned_away(
    wire: Wire, code: str, changes: dict[str, object], client: str
) -> None:
    wire.send(register(), "client-2")
    current = asked(wire)
    wire.send(msgspec.structs.replace(GOOD, **changes), client)
    wire.until(lambda: bool(wire.gateway.rejections))
    assert wire.gateway.rejections == {code: 1}
    assert current.outstanding() == {CLIENT}


def test_who_cannot_give_a_score_is_not_waited_for(wire: Wire) -> None:
    current = asked(wire)
    wire.send(Failed(RUN, ROUND - 1, "14", "of another round", "evaluate"))
    wire.send(Failed(RUN, ROUND, "19", "of a round's training that came late"))
    wire.send(msgspec.structs.replace(GOOD, round=ROUND - 1))
    wire.until(lambda: wire.gateway.rejections == {"late": 3})
    assert current.outstanding() == {CLIENT}
    wire.send(Failed(RUN, ROUND, "14", "No sample of this device is held out.", "evaluate"))
    wire.until(lambda: not current.outstanding())
    assert current.by_tier() == {}


def test_a_score_is_asked_for_until_it_comes_and_of_who_comes_back(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = asked(wire)
    assert wire.answer(Evaluate, register(test_samples=HELD_OUT)) == TASK
    monkeypatch.setattr("broker.gateway._REMIND_SECONDS", 0.3)
    wire.received.clear()
    wire.until(lambda: wire.received.count(TASK) == 3)  # though it was heard of
    wire.send(GOOD)
    wire.until(lambda: not current.outstanding())
    wire.received.clear()
    patience = time.monotonic() + 1
    wire.until(lambda: time.monotonic() > patience)
    assert TASK not in wire.received


def impatient(wire: Wire, weights: dict[str, NDArray[np.float32]], method: str) -> FederatedEvaluator:
    """One that waits for half a second at the most."""
    bundle, recipe = wire.bundle, open_recipe(method, {})
    return FederatedEvaluator(
        config=msgspec.structs.replace(CONFIG, evaluate_on=5, deadline=0.5),
        recipe=recipe,
        model=GlobalModel(bundle.layout, weights, recipe=recipe, run=RUN),
        fleet=wire.gateway,
        tiers=Tiers(),
        evaluator=Evaluator(bundle, load_dataset("digits").test, (TopK(),)),
        manifest=bundle.manifest,
    )


def test_a_device_that_never_answers_costs_no_more_than_the_deadline(wire: Wire, digits_bundle: Bundle) -> None:
    evaluator = impatient(wire, digits_bundle.weights(), "fedavg")
    assert evaluator.scores(ROUND) == {}  # pytest's limit ends what waits for ever
    wire.until(lambda: any(isinstance(m, Evaluate) for m in wire.received))
    wire.send(GOOD)
    wire.until(lambda: wire.gateway.rejections == {"late": 1})
    wire.received.clear()
    wire.answer(Registered, register(test_samples=0))
    assert evaluator.scores(ROUND + 1) == {}  # at once: nobody holds samples out
    assert not any(isinstance(m, Evaluate) for m in wire.received)


def test_a_device_scores_its_level_of_heterofl_with_the_factor_that_it_trains_with(
    wire: Wire, digits_bundle: Bundle
) -> None:
    wire.answer(Registered, register(test_samples=HELD_OUT, tier=2))
    impatient(wire, digits_bundle.weights(), "heterofl").scores(ROUND)
    wire.until(lambda: any(isinstance(message, Evaluate) for message in wire.received))
    task = next(message for message in wire.received if isinstance(message, Evaluate))
    assert (task.width, task.factor) == (250, 4.0)

    data = load_dataset("digits").test
    samples = Samples(data.x[:50], data.y[:50])
    weights = digits_bundle.weights()
    frame = GlobalModel(digits_bundle.layout, weights, recipe=open_recipe("heterofl", {}), run=RUN).frame()
    found, _ = evaluated(
        task,
        model=decode_frame(frame, digits_bundle.layout),
        runtime=open_runtime("onnx", digits_bundle),
        samples=samples,
        state={},
    )
    outputs = plain_outputs(weights, 250, samples.x, 4.0)
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(50), samples.y]
    assert found.loss == pytest.approx(losses.mean(), rel=1e-4)


def test_a_tier_s_score_is_the_mean_over_its_samples(digits_bundle: Bundle) -> None:
    widths = {"a": 500, "b": 500, "c": 1000}
    tasks = {client: msgspec.structs.replace(TASK, width=width) for client, width in widths.items()}
    current = ScoreRound(
        ROUND,
        tasks=tasks,
        tiers={"a": 3, "b": 3, "c": 1},
        metrics=(TopK(),),
        manifest=digits_bundle.manifest,
    )
    for client, samples, loss, accuracy in (("c", 7, 2.0, 0.5), ("b", 30, 1.0, 0.5), ("a", 10, 3.0, 1.0)):
        sums = {"accuracy": (accuracy * samples, float(samples))}
        assert current.take(client, Evaluated(RUN, ROUND, samples, loss, sums), register(test_samples=30))
    assert current.by_tier() == {
        1: TierScore(1, 7, 2.0, {"accuracy": 0.5}, 1000),
        3: TierScore(2, 40, 1.5, {"accuracy": 0.625}, 500),
    }
    with pytest.raises(FrameError, match="was not asked"):
        current.take("d", GOOD, register(test_samples=30))
