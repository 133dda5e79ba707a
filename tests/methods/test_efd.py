"""eFD: a model of one width, of which tiers that cannot run it get random units."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern, Prefix
from edge_fl.core.selection import Selection
from edge_fl.data.registry import load_dataset
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import Ask, Job, Method, open_method
from edge_fl.metrics.classification import TopK
from edge_fl.runs.config import RunConfig
from edge_fl.training.evaluator import Evaluator

LAYOUT = mlp_layout(6, 9, 20, 3)
TIERS = [1000, 800, 600, 400, 200]


def assign(method: Method, tier: int, *, client: str = "a", round: int = 1, layout: Layout = LAYOUT) -> Pattern:
    pattern = method.assign(Ask(layout, client, tier, round, 3))
    assert pattern is not None
    return pattern


@pytest.mark.parametrize("width", [1000, 600, 400])
@pytest.mark.parametrize("tier", range(6))
def test_a_tier_keeps_what_it_can_run_of_the_models_prefix(width: int, tier: int) -> None:
    method = open_method("efd", {"width": width})
    able, pattern = TIERS[min(tier, 4)], assign(method, tier)
    assert not (pattern.mask & ~Pattern.prefix(LAYOUT, width).mask).any()
    assert pattern.counts == {b.name: math.ceil(min(width, able) * b.size / 1000) for b in LAYOUT.blocks}
    assert method.programs(LAYOUT, tier) == [("plain", pattern.counts)]
    assert isinstance(pattern.origin, Prefix) == (able >= width)
    half = method.local(Job(LAYOUT, "a", 1, 3, {}, {}, pattern, tier))
    assert half.step.scale == max(1.0, width / able)
    assert half.step.width == method.model_width == width
    method.check(half.upload, tier, pattern)


def test_every_unit_of_the_prefix_is_kept_as_often_anew_each_client_and_round() -> None:
    method = open_method("efd", {"width": 600})
    masks = [assign(method, 4, client=c, round=r).mask for c in "ab" for r in range(1000)]
    rate, share = np.mean(masks, axis=0), [2 / 6] * 6 + [0] * 3 + [4 / 12] * 12 + [0] * 8
    np.testing.assert_allclose(rate, share, atol=5 * math.sqrt(2 / 9 / 2000))
    assert assign(method, 4) == assign(open_method("efd", {"width": 600}), 4)
    assert len({mask.tobytes() for mask in masks}) > 1500  # of 15 * 495


def test_every_device_evaluates_the_model_of_the_run() -> None:
    method = open_method("efd", {"width": 600, "widths": [1000, 200]})
    assert [method.evaluated_width(tier) for tier in range(2)] == [600, 600]


def test_an_update_of_another_pattern_is_refused() -> None:
    method = open_method("efd", {})
    with pytest.raises(FrameError, match="not the one that was assigned"):
        method.check(assign(method, 2, round=2), 2, assign(method, 2))


@pytest.mark.parametrize("tier", range(5))
def test_an_update_has_the_size_that_the_docstring_gives(
    tier: int, fmnist: Layout, numbers_sent: Callable[[Method, Pattern], int]
) -> None:
    method = open_method("efd", {"width": 600})
    k = math.ceil(256 * min(600, TIERS[tier]) / 1000)
    pattern = assign(method, tier, layout=fmnist)
    assert numbers_sent(method, pattern) == 784 * k + k + k * k + k + 10 * k + 10


def test_a_run_trains_and_measures_the_model_of_its_width_alone(small_bundle: Bundle, tmp_path: Path) -> None:
    config = RunConfig(
        run="test",
        method="efd",
        parameters={"width": 500},
        rounds=2,
        clients_per_round=5,
        local_steps=5,
        batch=20,
        lr=0.1,
        seed=3,
    )
    done = Simulation(
        bundle=small_bundle,
        config=config,
        population=Population(5, tiers=5),
        trainer=TrainerSettings("runtime"),
        root=tmp_path,
        observer=Observer(),
    ).run()
    start, after = small_bundle.weights(), load_file(done.weights)
    inside = Selection.of(Pattern.prefix(small_bundle.layout, 500), "units")
    for tensor in small_bundle.layout.tensors:
        moved = start[tensor.name] != after[tensor.name]
        assert moved[inside.index(tensor)].mean() > 0.5
        moved[inside.index(tensor)] = False
        assert not moved.any()
    evaluator, last = Evaluator(small_bundle, load_dataset("digits").test, (TopK(),)), done.rounds[-1]
    narrow, whole = evaluator.score(after, 500), evaluator.score(after)
    assert narrow is not None
    assert whole is not None
    assert (narrow.loss, narrow.scores) == (last.loss, last.scores) != (whole.loss, whole.scores)


def test_the_scale_may_be_left_out_and_the_mean_is_over_holders() -> None:
    method = open_method("efd", {"scale": False, "widths": [200]})
    assert method.local(Job(LAYOUT, "a", 1, 3, {}, {}, assign(method, 0))).step.scale == 1.0
    assert method.rule == "holders"


@pytest.mark.parametrize("wrong", [{"width": 0}, {"width": 1001}, {"widths": []}, {"widths": [0]}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("efd", wrong)
