"""Sums as whole numbers: the definition of each rule, in any order the same bits."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import edge_fl
from broker.sums import Sums
from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.exact_sums import (
    Counted,
    ExactAccumulator,
    ExactSum,
    HeldUpdates,
    check_partial,
    exponents_of,
)
from edge_fl.aggregation.rules import Accumulator, find_rule, rule_names
from edge_fl.aggregation.spool import Spool
from edge_fl.aggregation.sums import CpuSumming
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.layout import Mode
from edge_fl.core.server_half import Change, Weighting
from edge_fl.measure.models import random_weights
from edge_fl.runs.config import SecureAggregation
from edge_fl.wire.sum_frame import PartialSum, SumHeader, decode_sum, encode_sum
from tests.aggregation.test_rules import LAYOUT, SAMPLES, by_the_definition, updates


def summed(sums: Sums, mode: Mode, order: Sequence[int], discount: float = 1) -> Change:
    every = updates(mode)
    for k in order:
        clip = Clip(0.3, 1.0) if k == 1 and discount < 1 else WHOLE
        sums.add(*every[k], SAMPLES[k], discount if k == 2 else 1, clip=clip)
    return sums.change(random_weights(LAYOUT, 1))


def exact(rule: str, weighting: Weighting = "samples") -> ExactAccumulator:
    return ExactAccumulator(LAYOUT, find_rule(rule, weighting), Spool(LAYOUT, None))


@pytest.mark.parametrize("mode", ["rows", "units"])
@pytest.mark.parametrize("weighting", ["samples", "clients"])
@pytest.mark.parametrize("rule", rule_names())
def test_a_rule_is_its_definition(rule: str, weighting: Weighting, mode: Mode) -> None:
    found = summed(exact(rule, weighting), mode, (0, 1, 2))
    expected = by_the_definition(rule, mode, SAMPLES if weighting == "samples" else [1, 1, 1])
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", rule_names())
def test_no_order_changes_a_bit(rule: str) -> None:
    """Of stale and clipped updates, too, whose weights are no whole numbers."""
    orders = list(itertools.permutations(range(3)))
    every = [summed(exact(rule), "units", order, discount=3**-0.5) for order in orders]
    assert same(every)
    plain = [
        summed(Accumulator(LAYOUT, find_rule(rule), CpuSumming()), "units", order, discount=3**-0.5)
        for order in orders
    ]
    assert same(plain) == (rule in ("vote", "zeros"))  # float64 does not promise it: here it holds by chance


@pytest.mark.parametrize("mode", ["rows", "units"])
@pytest.mark.parametrize("rule", rule_names())
def test_partial_sums_merge_to_the_bits_of_one_sum(rule: str, mode: Mode) -> None:
    """Of 21 updates in 1, 2 and 7 parts, each part as a worker sends it, merged in any order."""
    found, counts = find_rule(rule), [Counted(n + 1, 3**-0.5 if n == 2 else 1, WHOLE) for n in range(21)]
    every = [updates(mode)[n % 3] for n in range(21)]
    held = HeldUpdates(LAYOUT, found, Spool(LAYOUT, None))
    reaches = [held.hold(*update) for update in every]
    reach = {tensor.name: max(one[tensor.name] for one in reaches) for tensor in LAYOUT.tensors}
    exponents = exponents_of(LAYOUT, sum(one.weight for one in counts), reach)
    outcomes = []
    for parts in (1, 2, 7):
        total = ExactSum(LAYOUT, exponents)
        for part in reversed(range(parts)):
            own = ExactSum(LAYOUT, exponents)
            held.add_to(own, [(n, counts[n]) for n in range(part, 21, parts)])
            header = SumHeader("run", 1, "", own.clients, own.weight, tuple(exponents.values()))
            partial = decode_sum(encode_sum(header, LAYOUT, own.tensors()), LAYOUT)
            check_partial(LAYOUT, partial, reach)
            total.merge(partial)
        assert (total.clients, total.weight) == (21, sum(range(1, 22)))
        outcomes.append(total.change(found, random_weights(LAYOUT, 1)))
    assert same(outcomes)
    alone = exact(rule)
    for update, counted in zip(every, counts, strict=True):
        alone.add(*update, counted.weight, counted.discount)
    assert same([outcomes[0], alone.change(random_weights(LAYOUT, 1))])


def test_a_sum_beyond_what_its_updates_can_come_to_is_refused() -> None:
    held = HeldUpdates(LAYOUT, find_rule("mean"), Spool(LAYOUT, None))
    reach = held.hold(*updates("rows")[0])
    own = ExactSum(LAYOUT, exponents_of(LAYOUT, 3, reach))
    held.add_to(own, [(0, Counted(3, 1, WHOLE))])
    header = SumHeader("run", 1, "", 1, 3, tuple(own.exponents.values()))
    partial = PartialSum(header, own.tensors())
    check_partial(LAYOUT, partial, reach)
    with pytest.raises(FrameError, match="more than its updates can come to"):
        check_partial(LAYOUT, partial, {name: 0.99 * most for name, most in reach.items()})


def same(every: Sequence[Change]) -> bool:
    return all(other[name].tobytes() == held.tobytes() for other in every for name, held in every[0].items())


def test_nobody_and_nothing() -> None:
    weights = random_weights(LAYOUT, 1)
    empty = exact("mean").change(weights)
    assert not any(held.any() for held in empty.values())
    sums = exact("mean")
    selection, values = updates("rows")[0]
    sums.add(selection, {name: np.zeros_like(held) for name, held in values.items()}, 3)
    assert not any(held.any() for held in sums.change(weights).values())


def test_a_run_with_exact_sums(digits_bundle: Bundle, tmp_path: Path) -> None:
    runs = [
        edge_fl.simulate(
            digits_bundle,
            "digits",
            test_data="digits",
            method=edge_fl.FedBIAD(dropout=0.5),
            clients=8,
            fraction=1.0,
            rounds=3,
            exact_sums=whole,
            output=tmp_path / str(whole),
        )
        for whole in (False, True)
    ]
    plain, whole = (load_file(run.folder / "weights.safetensors") for run in runs)
    assert all(np.abs(plain[name] - held).max() < 1e-5 for name, held in whole.items())
    with pytest.raises(ConfigError, match="leave --exact-sums out"):
        edge_fl.simulate(digits_bundle, "digits", exact_sums=True, secure=SecureAggregation(holders=2))
