"""Adapters averaged as products, against the mean of whole products and numpy's SVD of that."""

import numpy as np
import pytest
from numpy.typing import NDArray

from broker.products import check_products
from edge_fl.aggregation.bounds import Clip
from edge_fl.aggregation.products import ProductAccumulator, divided
from edge_fl.aggregation.rules import Accumulator, find_rule
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import CpuSumming
from edge_fl.core.adapters import adapters_of, rank_blocks
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import Change
from edge_fl.measure.models import random_weights
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import Privacy, RunConfig, SecureAggregation

RANK, INPUTS, OUTPUTS = 4, 6, 5
RANKS = (4, 2, 1)
SAMPLES = (10, 30, 5)


def tensor(name: str, *axes: tuple[int, str | None]) -> Tensor:
    """Axes are lengths, and the block that each is of."""
    segments = tuple((Segment(block, inner=1 if block else n),) for n, block in axes)
    return Tensor(name, tuple(n for n, _ in axes), rows=segments, units=segments)


LAYOUT = Layout(
    blocks=(Block("hidden", 3), Block("conv.lora_A", RANK), Block("fc.lora_A", RANK)),
    tensors=(
        tensor("hidden.weight", (3, "hidden"), (4, None)),
        tensor("conv.lora_A.weight", (RANK, "conv.lora_A"), (2, None), (3, None), (3, None)),
        tensor("conv.lora_B.weight", (OUTPUTS, None), (RANK, "conv.lora_A"), (1, None), (1, None)),
        tensor("fc.lora_A.weight", (RANK, "fc.lora_A"), (INPUTS, None)),
        tensor("fc.lora_B.weight", (OUTPUTS, None), (RANK, "fc.lora_A")),
    ),
)
LAYERS = ("conv", "fc")


def selection(rank: int) -> Selection:
    return Selection.of(Pattern.prefix(LAYOUT, 1000 * rank // RANK).filled(["hidden"]), "units")


def change_of(
    layout_updates: list[dict[str, NDArray[np.float32]]], old: dict[str, NDArray[np.float32]], *clips: Clip
) -> Change:
    rule = find_rule("products")
    sums = ProductAccumulator(
        LAYOUT, rule, Spool(LAYOUT, None), lambda layout: Accumulator(layout, rule, CpuSumming())
    )
    for k, values in enumerate(layout_updates):
        more = {"clip": clips[k]} if clips else {}
        sums.add(selection(RANKS[k]), values, SAMPLES[k], **more)
    return sums.change(old)


def updates() -> list[dict[str, NDArray[np.float32]]]:
    return [selection(rank).gather(random_weights(LAYOUT, 10 + k)) for k, rank in enumerate(RANKS)]


def product(layer: str, weights: dict[str, NDArray[np.float32]], rank: int = RANK) -> NDArray[np.float64]:
    down, up = (weights[f"{layer}.lora_{part}.weight"].astype(np.float64) for part in "AB")
    return np.asarray(up.reshape(OUTPUTS, RANK)[:, :rank] @ down.reshape(RANK, -1)[:rank])


def moved(old: dict[str, NDArray[np.float32]], change: Change) -> dict[str, NDArray[np.float64]]:
    return {name: array.astype(np.float64) + change[name] for name, array in old.items()}


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_adapter_is_the_nearest_to_the_mean_of_products(layer: str, share: float) -> None:
    old, mean = random_weights(LAYOUT, 1), np.zeros(())
    new = moved(old, change_of(updates(), old, *[Clip(share, 1.0)] * 3))
    for rank, samples, values in zip(RANKS, SAMPLES, updates(), strict=True):
        full = {name: np.zeros_like(array) for name, array in old.items()}
        selection(rank).scatter(values, full)
        client = {name: old[name] + np.float32(share) * full[name] for name in old}
        mean = mean + samples / sum(SAMPLES) * product(layer, client, rank)
    left, sizes, right = np.linalg.svd(mean, full_matrices=False)
    for rank in range(1, RANK + 1):  # a device of fewer ranks has the nearest of these
        nearest = left[:, :rank] * sizes[:rank] @ right[:rank]
        np.testing.assert_allclose(product(layer, new, rank), nearest, atol=1e-6)


def test_all_else_is_the_mean_of_its_holders() -> None:
    old = random_weights(LAYOUT, 1)
    change = change_of(updates(), old)["hidden.weight"]
    expected = np.average([values["hidden.weight"] for values in updates()], axis=0, weights=SAMPLES)
    np.testing.assert_allclose(change, expected, atol=1e-6)


def test_a_rank_that_the_product_lacks_can_still_be_trained() -> None:
    """At first B is zero: with A at zero, too, no gradient would ever come."""
    old = random_weights(LAYOUT, 1)
    for layer in LAYERS:
        old[f"{layer}.lora_B.weight"][...] = 0
    still = [{name: np.zeros_like(array) for name, array in values.items()} for values in updates()]
    assert not any(array.any() for array in change_of(still, old).values())
    one = np.ones((1, INPUTS)), np.ones((OUTPUTS, 1))
    down, up = divided([one], old["fc.lora_A.weight"].astype(np.float64))
    np.testing.assert_allclose(up @ down, np.ones((OUTPUTS, INPUTS)))
    assert not up[:, 1:].any()
    assert down[1:].tolist() == old["fc.lora_A.weight"][1:].tolist()


@pytest.mark.parametrize("ranks", [2, 40])
def test_few_and_many_ranks_are_divided_alike(ranks: int) -> None:
    """Few without the whole product, many by it."""
    rng = np.random.default_rng(3)
    downs, ups, old = (rng.standard_normal(shape) for shape in ((ranks, 30), (20, ranks), (8, 30)))
    at = ranks // 2
    down, up = divided([(downs[:at], ups[:, :at]), (downs[at:], ups[:, at:])], old)
    left, sizes, right = np.linalg.svd(ups @ downs)
    np.testing.assert_allclose(up @ down, left[:, :8] * sizes[:8] @ right[:8], atol=1e-10)
    kept = min(ranks, 8)
    np.testing.assert_allclose(down[:kept] @ down[:kept].T, np.eye(kept), atol=1e-10)
    assert all(row[np.abs(row).argmax()] > 0 for row in down[:kept])


@pytest.mark.parametrize("size", [1e9, 3e37])
def test_an_adapter_that_explodes_ends_the_round_with_a_sentence(size: float) -> None:
    """Each factor may be as far off as an update may: their product is off by the square."""
    wild = [{name: np.full_like(array, size) for name, array in values.items()} for values in updates()]
    with pytest.raises(RunError, match=r"The adapter of '(conv|fc)' diverged: lower the step size"):
        change_of(wild, random_weights(LAYOUT, 1))


def test_what_is_not_finite_is_no_adapter() -> None:
    for wrong in (np.inf, np.nan):
        for ranks in (1, 9):
            term = np.full((ranks, INPUTS), wrong), np.ones((OUTPUTS, ranks))
            down, up = divided([term], np.ones((RANK, INPUTS)))
            assert not np.isfinite(down).any()
            assert not np.isfinite(up).any()


def test_a_round_without_updates_changes_nothing() -> None:
    assert not any(array.any() for array in change_of([], random_weights(LAYOUT, 1)).values())


def test_adapters_are_known_by_their_names() -> None:
    assert list(adapters_of(LAYOUT)) == ["conv", "fc"]
    assert rank_blocks(LAYOUT) == {"conv.lora_A", "fc.lora_A"}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"robust": "median"}, "leave --robust out"),
        ({"exact_sums": True}, "leave --exact-sums out"),
        ({"secure": SecureAggregation()}, "leave --secure-aggregation out"),
        ({"privacy": Privacy("central", noise=1.0)}, "leave differential privacy out"),
        ({"buffer": 2}, "leave --buffer out"),
    ],
)
def test_what_needs_sums_is_refused(setting: dict[str, object], sentence: str) -> None:
    settings = {"rounds": 1, "clients_per_round": 3, "local_steps": 1, "batch": 1, "lr": 0.1, "seed": 0}
    config = RunConfig(run="r", method="flexlora", parameters={}, **{**settings, **setting})
    with pytest.raises(ConfigError, match=sentence):
        check_products(config, open_recipe("flexlora", {}))
    check_products(config, open_recipe("hetlora", {}))


def test_a_compressor_with_a_memory_is_refused() -> None:
    assert open_recipe("flexlora+fedpaq", {}).name == "flexlora+fedpaq"
    assert open_recipe("hetlora+dgc", {}).name == "hetlora+dgc"
    with pytest.raises(ConfigError, match="'signsgd' has a rule of its own"):
        open_recipe("flexlora+signsgd", {"signsgd.step": 0.001})
    with pytest.raises(ConfigError, match="'dgc' remembers what it did not send of each rank"):
        open_recipe("flexlora+dgc", {})
