"""FedMP's choice of units against norms added up one by one."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_fl.bench.models import mlp_layout, random_weights
from edge_fl.errors import ConfigError
from edge_fl.layout import Block, Layout, Segment, Tensor
from edge_fl.methods.base import Job, Method, open_method
from edge_fl.methods.fedmp import unit_norms
from edge_fl.pattern import Pattern

LAYOUT = mlp_layout(6, 9, 7, 3)


def choose(weights: dict[str, NDArray[np.float32]], *, dropout: int = 500, round: int = 1) -> Pattern:
    method = open_method("fedmp", {"dropout": [dropout]})
    return method.local(Job(LAYOUT, "a", round, 3, weights, {})).pattern


def test_it_keeps_the_rows_of_largest_l1_norm() -> None:
    weights = random_weights(LAYOUT, 5)
    pattern = choose(weights, dropout=300)
    for name, kept in (("layer0", 6), ("layer1", 5)):
        norms = []
        for row, bias in zip(weights[f"{name}.weight"], weights[f"{name}.bias"], strict=True):
            norms.append(sum(abs(float(w)) for w in row) + abs(float(bias)))
        largest = sorted(range(len(norms)), key=lambda unit: -norms[unit])[:kept]
        assert pattern.kept[name].tolist() == sorted(largest)


def test_the_bias_is_part_of_a_row() -> None:
    weights = {t.name: np.zeros(t.shape, dtype=np.float32) for t in LAYOUT.tensors}
    weights["layer0.bias"][[0, 2, 4, 6, 8]] = -1
    assert choose(weights).kept["layer0"].tolist() == [0, 2, 4, 6, 8]


def test_norms_follow_segments_and_leave_statistics_out() -> None:
    """Units whose rows are interleaved (outer 2, inner 3) after a stretch that no block owns."""
    own = (Segment(None, inner=4), Segment("b", outer=2, inner=3))
    free = (Segment(None, inner=2),)
    tensors = (
        Tensor("w", (2, 34), rows=(free, own), units=(free, own)),
        Tensor("mean", (34,), rows=(own,), units=(own,), role="statistic"),
    )
    layout = Layout((Block("b", 5),), tensors)
    weights = random_weights(layout, 2)
    expected = np.zeros(5)
    for unit in range(5):
        for o in range(2):
            for i in range(3):
                expected[unit] += np.abs(weights["w"][:, 4 + (o * 5 + unit) * 3 + i].astype(np.float64)).sum()
    np.testing.assert_allclose(unit_norms(layout, weights), expected)


def test_ties_are_broken_at_random_but_a_retry_chooses_alike() -> None:
    flat = {t.name: np.ones(t.shape, dtype=np.float32) for t in LAYOUT.tensors}
    chosen = [choose(flat, round=r) for r in range(8)]
    assert all(p.counts == {"layer0": 5, "layer1": 4} for p in chosen)
    assert len(set(chosen)) > 1
    assert choose(flat, round=3) == chosen[3]


def test_each_tier_has_its_ratio() -> None:
    method = open_method("fedmp", {"dropout": [0, 300]})
    assert [method.for_tier(t)["dropout"] for t in range(3)] == [(0,), (300,), (300,)]
    assert method.counts(LAYOUT, 1) == {"layer0": 6, "layer1": 5}
    assert method.rule == "delta"


def test_an_update_has_the_size_that_the_docstring_gives(
    fmnist: Layout, numbers_sent: Callable[[Method, Pattern], int]
) -> None:
    method = open_method("fedmp", {})
    pattern = method.local(Job(fmnist, "a", 1, 0, random_weights(fmnist, 1), {})).upload
    method.check(pattern, 0)
    assert numbers_sent(method, pattern) == 784 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10


@pytest.mark.parametrize("wrong", [{"dropout": [1000]}, {"rule": "holders"}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("fedmp", wrong)
