"""HeteroFL: counts and scaler of each level, fixed and dynamic assignment."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.data.batcher import batches
from edge_fl.data.partition import Kind, partition
from edge_fl.data.registry import load_dataset
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import Ask, Job, Method, open_method
from edge_fl.runs.config import RunConfig
from exporter.export import Target, export_bundle
from exporter.zoo.mlp import mlp

LAYOUT = mlp_layout(6, 64, 160, 3)
RATES = [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]


def assign(method: Method, tier: int = 0, *, client: str = "a", round: int = 1) -> Pattern:
    pattern = method.assign(Ask(LAYOUT, client, tier, round, 3))
    assert pattern is not None
    return pattern


@pytest.mark.parametrize(("tier", "rate"), list(enumerate([*RATES, 1 / 16])))
def test_a_level_keeps_its_share_from_the_front_and_scales_by_its_reciprocal(tier: int, rate: float) -> None:
    method = open_method("heterofl", {})
    pattern = assign(method, tier)
    for block in LAYOUT.blocks:
        assert pattern.kept[block.name].tolist() == list(range(int(block.size * rate)))
    assert method.counts(LAYOUT, tier) == pattern.counts
    assert method.programs(LAYOUT, tier) == [("plain", pattern.counts)]
    local = method.local(Job(LAYOUT, "a", 1, 3, {}, {}, pattern, tier))
    assert local.step.scale == 1 / rate
    assert local.upload is pattern


@pytest.mark.parametrize("units", [*range(1, 200), 256, 512, 1024, 1984])
def test_level_e_rounds_as_the_docstring_says(units: int) -> None:
    layout = mlp_layout(1, units, 1)
    kept = open_method("heterofl", {"levels": ["e"]}).counts(layout, 0)["layer0"]
    assert kept == math.ceil(units / 16) if units % 16 == 0 else 0 < kept <= math.ceil(units / 16)


def test_fixed_levels_do_not_change_with_the_round() -> None:
    method = open_method("heterofl", {"levels": ["a", "c"]})
    assert len({assign(method, 1, client=c, round=r) for c in "abc" for r in range(5)}) == 1
    assert [method.evaluated_width(tier) for tier in range(3)] == [1000, 250, 250]


def test_dynamic_levels_are_drawn_uniformly_anew_each_round_and_alike_on_a_retry() -> None:
    method = open_method("heterofl", {"levels": ["a", "b", "e"], "dynamic": True})
    drawn = [assign(method, 1, round=r) for r in range(1500)]
    seen = Counter(p.counts["layer0"] for p in drawn)
    assert sorted(seen) == [4, 32, 64]
    assert all(abs(count - 500) <= 5 * math.sqrt(1500 * 2 / 9) for count in seen.values())
    assert assign(method, 1, round=7) == drawn[7]
    assert method.counts(LAYOUT, 1)["layer0"] == 64
    assert [p["layer0"] for _, p in method.programs(LAYOUT, 1)] == [4, 32, 64]
    assert method.evaluated_width(1) == 1000


def test_an_update_of_a_drawn_level_passes_and_one_of_another_does_not() -> None:
    method = open_method("heterofl", {"dynamic": True})
    for level in (1000, 500, 250, 125, 62):
        pattern = Pattern.prefix(LAYOUT, level)
        method.check(pattern, 0, pattern)
    with pytest.raises(FrameError, match="not the one that was assigned"):
        method.check(Pattern.full(LAYOUT), 0, Pattern.prefix(LAYOUT, 500))


def test_the_scaler_may_be_left_out_and_only_a_level_has_one() -> None:
    job = Job(LAYOUT, "a", 1, 3, {}, {}, Pattern.prefix(LAYOUT, 500))
    assert open_method("heterofl", {"scale": False}).local(job).step.scale == 1.0
    for pattern in (Pattern.prefix(LAYOUT, 300), Pattern.seeded(LAYOUT, 500, 1)):
        with pytest.raises(ConfigError, match="no prefix of a HeteroFL level"):
            open_method("heterofl", {}).local(Job(LAYOUT, "a", 1, 3, {}, {}, pattern))


@pytest.mark.parametrize(("tier", "k"), list(enumerate([256, 128, 64, 32, 16])))
def test_an_update_has_the_size_that_the_docstring_gives(
    tier: int, k: int, fmnist: Layout, numbers_sent: Callable[[Method, Pattern], int]
) -> None:
    method = open_method("heterofl", {})
    pattern = method.assign(Ask(fmnist, "a", tier, 1, 0))
    assert pattern is not None
    assert numbers_sent(method, pattern) == 784 * k + k + k * k + k + 10 * k + 10


@pytest.mark.parametrize("mask", [True, False])
def test_the_mask_may_be_left_out(mask: bool) -> None:
    assert open_method("heterofl", {"mask": mask}).masks_labels is mask


@pytest.mark.parametrize(("method", "masked"), [("heterofl", True), ("fedavg", False)])
def test_masked_cross_entropy_sets_the_outputs_of_absent_labels_to_zero(
    method: str, masked: bool, tmp_path: Path
) -> None:
    """One step of each client against torch; a method that masks nothing trains on the same bundle unmasked."""
    torch.manual_seed(0)
    target = Target("d", "digits", Input((1, 8, 8), "float32"), 10, ("onnx",), loss="masked_cross_entropy")
    bundle = export_bundle(mlp(inputs=64, hidden=6, classes=10), target, tmp_path / "bundle")
    kind = Kind.parse("labels=2")
    sizes = {"rounds": 1, "clients_per_round": 5, "local_steps": 1, "batch": 20}
    config = RunConfig(run="run", method=method, parameters={}, lr=0.5, seed=3, **sizes)
    done = Simulation(
        bundle=bundle,
        config=config,
        population=Population(5, kind=kind),
        trainer=TrainerSettings("runtime"),
        root=tmp_path / "run",
        observer=Observer(),
    ).run()

    start, train = bundle.weights(), load_dataset("digits").train
    sums, total = {name: np.zeros_like(array) for name, array in start.items()}, 0
    for i, part in enumerate(partition(train, 5, kind)):
        samples = train.take(part)
        stream = Stream.of(seed=3, purpose="batches", client=f"client-{i}", round=1)
        (batch,) = batches(samples, steps=1, size=20, stream=stream, whole=False)
        model = mlp(inputs=64, hidden=6, classes=10)
        model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in start.items()})
        outputs = model(torch.from_numpy(batch.x))
        absent = [label for label in range(10) if label not in samples.y]
        assert len(absent) >= 7
        if masked:
            outputs = outputs.index_fill(1, torch.tensor(absent), 0.0)
        torch.nn.functional.cross_entropy(outputs, torch.from_numpy(batch.y)).backward()
        samples_count = 1 if method == "heterofl" else len(samples.y)
        total += samples_count
        for name, parameter in model.named_parameters():
            sums[name] -= samples_count * 0.5 * parameter.grad.numpy()
    after = load_file(done.weights)
    for name, array in start.items():
        np.testing.assert_allclose(after[name], array + sums[name] / total, rtol=0, atol=1e-6)


def test_the_mean_is_over_holders_and_unweighted() -> None:
    assert (open_method("heterofl", {}).rule, open_method("heterofl", {}).weighting) == ("holders", "clients")


@pytest.mark.parametrize("wrong", [{"levels": []}, {"levels": ["f"]}, {"rate": 2}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("heterofl", wrong)
