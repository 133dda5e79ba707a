"""The global model: what a round's updates, and the server's own step, make of it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from broker.acceptance import Expected, check_update
from broker.defence import Defence
from broker.model import GlobalModel
from edge_fl.aggregation.bounds import Bounds
from edge_fl.compressors.base import DECODERS, open_compressor
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection, Weights
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.recipes.recipe import Recipe, open_recipe
from edge_fl.wire.context import Context
from edge_fl.wire.downlink import follow
from edge_fl.wire.frame import Frame, Header, decode_frame, encode_frame
from edge_fl.wire.values import FLOAT32, flatten
from tests.compressors.contexts import of_entries

LAYOUT = mlp_layout(5, 8, 6, 3)
FEDAVG = open_recipe("fedavg", {})


def header(recipe: Recipe, client: int, values: str, version: int = 0) -> Header:
    return Header(
        kind="update",
        run="r",
        round=1,
        version=version,
        layout="",
        method=recipe.name,
        client=f"c{client}",
        samples=10 * client + 1,
        values=values,
    )


def dense(recipe: Recipe, delta: Weights, version: int = 0) -> Frame:
    """An update of the model of that version that is not compressed."""
    return decode_frame(encode_frame(header(recipe, 0, FLOAT32, version), Pattern.full(LAYOUT), delta), LAYOUT)


def compressed(recipe: Recipe, client: int, delta: Weights, layout: Layout = LAYOUT) -> Frame:
    """A client's update of every row, through its compressor and the wire."""
    compressor, pattern = recipe.compressor, Pattern.full(layout)
    assert compressor is not None
    context = Context(Selection.of(pattern, "units"), round=1)
    vector = flatten(context.selection, delta)
    memory = {name: np.zeros_like(vector) for name in compressor.memory}
    stream = Stream.of(seed=client, purpose="test")
    section = compressor.compress(vector, memory, context, stream).section
    return decode_frame(
        encode_frame(header(recipe, client, compressor.name), pattern, delta, section), layout, decoders=DECODERS
    )


def deltas(clients: int) -> list[Weights]:
    return [random_weights(LAYOUT, 10 + client) for client in range(clients)]


def start(recipe: Recipe) -> GlobalModel:
    return GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=recipe, run="r")


def bounded(**bounds: Any) -> Defence:
    return Defence(Bounds(**bounds))


def updates(recipe: Recipe, every: list[Weights]) -> Iterator[tuple[int, Frame]]:
    return ((0, compressed(recipe, client, delta)) for client, delta in enumerate(every))


def aggregate(model: GlobalModel, every: Iterable[tuple[int, Frame]]) -> None:
    """A round of these updates, each with its client's tier."""
    total = model.begin()
    for tier, frame in every:
        total.add(tier, frame)
    model.apply(total)


def test_a_client_counts_for_so_many_samples_at_most() -> None:
    recipe, every = open_recipe("fedavg", {}), deltas(2)
    honest, boasting = (dense(recipe, delta) for delta in every)
    boasting = replace(boasting, header=msgspec.structs.replace(boasting.header, samples=2**31 - 1))
    samples = honest.header.samples
    model = GlobalModel(
        LAYOUT, random_weights(LAYOUT, 0), recipe=recipe, run="r", defence=bounded(max_samples=samples)
    )
    aggregate(model, [(0, honest), (1, boasting)])
    for name, before in random_weights(LAYOUT, 0).items():
        expected = before + (every[0][name] + every[1][name]) / 2
        np.testing.assert_allclose(model.weights[name], expected, rtol=1e-5, atol=1e-6)


def changes(defence: Defence, rounds: list[list[Frame]], recipe: Recipe | None = None) -> list[Weights]:
    """By how much each of ``rounds`` changes a model that starts the next one anew."""
    model = GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=recipe or FEDAVG, run="r", defence=defence)
    found = []
    for frames in rounds:
        before = model.weights
        stale = [replace(f, header=msgspec.structs.replace(f.header, version=model.version)) for f in frames]
        aggregate(model, [(0, frame) for frame in stale])
        found.append({name: model.weights[name] - before[name] for name in before})
    return found


def named(frame: Frame, client: str) -> Frame:
    return replace(frame, header=msgspec.structs.replace(frame.header, client=client))


def times(factor: float, delta: Weights) -> Weights:
    return {name: np.float32(factor) * array for name, array in delta.items()}


def test_an_update_beyond_twice_the_median_is_scaled_down_to_that_in_the_first_round_too() -> None:
    one = random_weights(LAYOUT, 1)
    honest, large = [dense(FEDAVG, one)] * 4, dense(FEDAVG, times(3.9, one))
    for change in changes(bounded(norm=2), [[*honest, large], [large, *honest], [large, *honest]]):
        for name, array in change.items():  # (4 + 2) / 5
            np.testing.assert_allclose(array, 1.2 * one[name], rtol=1e-4, atol=1e-5)


def test_an_update_beyond_four_times_the_median_is_left_out_in_the_first_round_too() -> None:
    one = random_weights(LAYOUT, 1)
    honest, large = [dense(FEDAVG, one)] * 4, named(dense(FEDAVG, times(4.1, one)), "liar")
    alone = changes(Defence(), [honest, honest])
    ours = changes(bounded(norm=2), [[*honest, large], [large, *honest]])
    for change, expected in zip(ours, alone, strict=True):
        assert all(np.array_equal(change[name], expected[name]) for name in one)


def test_of_fewer_than_five_updates_none_is_left_out() -> None:
    one = random_weights(LAYOUT, 1)
    honest, large = [dense(FEDAVG, one)] * 3, dense(FEDAVG, times(999, one))
    for change in changes(bounded(norm=2), [[*honest, large], [large, *honest]]):
        for name, array in change.items():  # (3 + 2) / 4
            np.testing.assert_allclose(array, 1.25 * one[name], rtol=1e-4, atol=1e-5)


def test_a_fleet_whose_updates_all_grow_is_held_to_twice_the_last_median_and_goes_on() -> None:
    one = random_weights(LAYOUT, 1)
    small, grown = [dense(FEDAVG, one)] * 5, [dense(FEDAVG, times(10, one))] * 5
    for change, factor in zip(changes(bounded(norm=2), [small, grown, grown]), (1, 2, 10), strict=True):
        for name, array in change.items():
            np.testing.assert_allclose(array, factor * one[name], rtol=1e-4, atol=1e-5)


def test_honest_updates_of_one_size_are_summed_to_the_bit_with_and_without_bounds() -> None:
    frames = [dense(FEDAVG, random_weights(LAYOUT, seed)) for seed in range(1, 6)]
    with_bounds = changes(bounded(norm=2, samples=10), [frames, frames])
    for ours, theirs in zip(with_bounds, changes(Defence(), [frames, frames]), strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_no_client_counts_for_more_than_some_times_the_median_clients_samples() -> None:
    frames = [dense(FEDAVG, random_weights(LAYOUT, seed)) for seed in range(1, 4)]
    boast = replace(frames[0], header=msgspec.structs.replace(frames[0].header, samples=2**31 - 1))
    samples = frames[0].header.samples
    tenfold = replace(frames[0], header=msgspec.structs.replace(frames[0].header, samples=10 * samples))
    bounded_, honest = (
        changes(defence, [[first, *frames[1:]]])[0]
        for defence, first in ((bounded(samples=10), boast), (Defence(), tenfold))
    )
    assert all(np.array_equal(bounded_[name], honest[name]) for name in honest)


def test_whoever_is_clipped_is_named_with_the_share_that_counts() -> None:
    one = random_weights(LAYOUT, 1)
    frames = [dense(FEDAVG, one)] * 4
    large, huge = (named(dense(FEDAVG, times(factor, one)), f"x{factor}") for factor in (3, 8))
    model = GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=FEDAVG, run="r", defence=bounded(norm=2))
    total = model.begin()
    for frame in [*frames, large, huge]:
        total.add(0, frame)
    assert model.apply(total).clipped == {"x3": pytest.approx(2 / 3), "x8": 0}


def test_the_median_of_the_last_round_goes_on_with_a_checkpoint() -> None:
    one = random_weights(LAYOUT, 1)
    first = GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=FEDAVG, run="r", defence=bounded(norm=2))
    aggregate(first, [(0, dense(FEDAVG, one))] * 3)
    then = GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=FEDAVG, run="r", defence=bounded(norm=2))
    then.load_state_dict(1, first.weights, first.state_dict())
    large = dense(FEDAVG, times(100, one), version=1)
    aggregate(then, [(0, large)])  # alone, and still held to what the others were
    for name in one:
        np.testing.assert_allclose(then.weights[name] - first.weights[name], 2 * one[name], rtol=1e-3, atol=1e-5)


def test_statistics_are_held_to_the_last_ones_that_were_sent() -> None:
    """A round without any is no median of theirs: a single client could then move them as far as it likes."""
    mean = Tensor("mean", (4,), ((Segment(None, inner=4),),), ((Segment(None, inner=4),),), role="statistic")
    layout = Layout(LAYOUT.blocks, (*LAYOUT.tensors, mean))
    sent = random_weights(layout, 1)

    def update(factor: float, client: str, version: int) -> Frame:
        delta = sent | {"mean": np.float32(factor) * sent["mean"]}
        told = msgspec.structs.replace(
            header(FEDAVG, 0, FLOAT32, version),
            client=client,
            without_statistics=msgspec.UNSET if factor else True,
        )
        return decode_frame(encode_frame(told, Pattern.full(layout), delta), layout)

    model = GlobalModel(layout, random_weights(layout, 0), recipe=FEDAVG, run="r", defence=bounded(norm=2))
    for number, sends in enumerate((False, True, False, True)):
        before, total = model.weights["mean"], model.begin()
        for i in range(4):
            total.add(0, update(1.0 if sends else 0.0, f"c{i}", number))
        if sends:
            total.add(0, update(1e30, "liar", number))
        applied = model.apply(total)
        assert applied.clipped == ({"liar": 0} if sends else {})
        np.testing.assert_allclose(model.weights["mean"] - before, sends * sent["mean"], rtol=1e-4, atol=1e-5)
        again = GlobalModel(layout, model.weights, recipe=FEDAVG, run="r", defence=bounded(norm=2))
        again.load_state_dict(number + 1, model.weights, model.state_dict())
        model = again


def test_a_vote_is_not_clipped() -> None:
    recipe = open_recipe("fedavg+signsgd", {"signsgd.step": 0.25})
    frames = [dense(recipe, times(10**k, random_weights(LAYOUT, k))) for k in range(5)]
    ours, theirs = (changes(d, [frames, frames], recipe) for d in (bounded(norm=2), Defence()))
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) for name in a)


def test_a_round_in_which_most_change_nothing_bounds_nobody() -> None:
    one = random_weights(LAYOUT, 1)
    nothing = dense(FEDAVG, times(0, one))
    (change,) = changes(bounded(norm=2), [[nothing, nothing, dense(FEDAVG, one)]])
    for name in one:
        np.testing.assert_allclose(change[name], one[name] / 3, rtol=1e-4, atol=1e-6)


def test_a_majority_moves_each_weight_by_the_step_whoever_has_more_samples() -> None:
    recipe, every = open_recipe("fedavg+signsgd", {"signsgd.step": 0.25}), deltas(3)
    model, old = start(recipe), random_weights(LAYOUT, 0)
    aggregate(model, updates(recipe, every))

    for name, before in old.items():
        for i in np.ndindex(*before.shape):
            positive = sum(bool(delta[name][i] > 0) for delta in every)
            moved = 0.25 if positive >= 2 else -0.25
            assert model.weights[name][i] == np.float32(before[i] + moved)


def test_a_vote_counts_once_whatever_size_its_sender_gives_it() -> None:
    recipe, honest = open_recipe("fedavg+signsgd", {"signsgd.step": 0.25}), random_weights(LAYOUT, 1)
    against = {name: np.float32(-1e6) * np.sign(array) for name, array in honest.items()}
    model, old = start(recipe), random_weights(LAYOUT, 0)
    aggregate(model, [*updates(recipe, [honest, honest]), (0, dense(recipe, against))])
    for name, before in old.items():
        np.testing.assert_array_equal(np.sign(model.weights[name] - before), np.sign(honest[name]))


def test_a_tie_moves_nothing_and_a_weight_without_a_gradient_tosses_a_coin() -> None:
    recipe = open_recipe("fedavg+signsgd", {"signsgd.step": 0.25})
    one = random_weights(LAYOUT, 1)
    model, old = start(recipe), random_weights(LAYOUT, 0)
    aggregate(model, updates(recipe, [one, {name: -array for name, array in one.items()}]))
    assert all(np.array_equal(model.weights[name], old[name]) for name in old)

    vote, memory = open_compressor("signsgd", {"step": 1.0}), {"residual": np.zeros(4000, np.float32)}
    stream = Stream.of(seed=0, purpose="test")
    done = vote.compress(np.zeros(4000, np.float32), memory, of_entries(4000), stream)
    assert done.memory == {}
    assert abs(vote.decompress(memoryview(done.section), of_entries(4000)).mean()) < 0.1


def test_what_the_server_sends_of_its_change_is_ternary_and_the_rest_is_not_forgotten() -> None:
    """Sattler et al. 2019, Algorithm 2, lines 18 to 20, entry by entry over six rounds."""
    recipe = open_recipe("fedavg+stc", {"stc.down": 0.2})
    model, every = start(recipe), Selection.of(Pattern.full(LAYOUT), "units")
    expected = flatten(every, random_weights(LAYOUT, 0)).astype(np.float64)
    residual = np.zeros(len(expected))
    for number in range(6):
        delta = random_weights(LAYOUT, 20 + number)
        aggregate(model, [(0, dense(recipe, delta, number))])

        residual += flatten(every, delta)
        kept = sorted(range(len(residual)), key=lambda i: -abs(residual[i]))[: round(0.2 * len(residual))]
        mu = np.mean([abs(residual[i]) for i in kept])
        for i in kept:
            expected[i] += np.copysign(mu, residual[i])
            residual[i] -= np.copysign(mu, residual[i])
        np.testing.assert_allclose(flatten(every, model.weights), expected, atol=1e-5)


def test_a_device_follows_changes_to_the_very_bytes_of_the_model() -> None:
    recipe = open_recipe("fedavg+stc", {"stc.ratio": 0.1, "stc.down": 0.1})
    model = start(recipe)
    held = [model.frame()]
    for number in range(12):
        aggregate(model, updates(recipe, [random_weights(LAYOUT, 30 + number)]))
        held.append(model.frame())

    for behind in range(1, 3):
        changes = model.changes_since(12 - behind)
        assert changes is not None
        assert len(changes) == behind
        assert follow(held[12 - behind], changes, LAYOUT, DECODERS) == held[12]
    assert model.changes_since(0) is None  # by now the whole model is fewer bytes
    assert model.changes_since(12) is None


@pytest.mark.parametrize("parameters", [{}, {"stc.down": 0.0}])
def test_models_travel_whole_where_nothing_compresses_a_change(parameters: dict[str, float]) -> None:
    recipe = open_recipe("fedavg+stc" if parameters else "fedavg+topk", parameters)
    model = start(recipe)
    aggregate(model, updates(recipe, deltas(2)))
    assert model.changes_since(0) is None


def test_statistics_travel_with_a_change_as_they_are() -> None:
    recipe, segments = open_recipe("fedavg+stc", {}), ((Segment("layer0"),),)
    variance = Tensor("bn.var", (8,), rows=segments, units=segments, role="statistic")
    layout = Layout(LAYOUT.blocks, (*LAYOUT.tensors, variance))
    ones = {tensor.name: np.ones(tensor.shape, np.float32) for tensor in layout.tensors}
    model = GlobalModel(layout, ones, recipe=recipe, run="r")
    first, moved = model.frame(), np.linspace(0, 1, 8, dtype=np.float32)

    aggregate(model, [(0, compressed(recipe, 0, {**random_weights(LAYOUT, 1), "bn.var": moved}, layout))])

    np.testing.assert_allclose(model.weights["bn.var"], 1 + moved, rtol=1e-6)
    changes = model.changes_since(0)
    assert changes is not None
    assert follow(first, changes, layout, DECODERS) == model.frame()


@pytest.mark.parametrize("method", ["fedavg", "heterofl"])  # weighted by samples, and all alike
def test_an_update_from_an_older_model_counts_for_less(method: str) -> None:
    recipe, (fresh, stale) = open_recipe(method, {}), deltas(2)
    model = start(recipe)
    model.version = 3
    frames = [dense(recipe, fresh, 3), dense(recipe, stale, 0)]
    before = dict(model.weights)
    aggregate(model, ((0, frame) for frame in frames))
    for name, old in before.items():
        expected = old + (fresh[name] + 0.5 * stale[name]) / 2  # 1 / sqrt(1 + 3)
        np.testing.assert_allclose(model.weights[name], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("wanted", [True, False])
def test_an_update_holds_statistics_where_its_task_wants_them_alone(*, wanted: bool) -> None:
    asked = Expected(
        layout=LAYOUT,
        recipe=FEDAVG,
        run="r",
        round=1,
        version=0,
        client="c0",
        tier=0,
        samples=10,
        max_change=1e3,
        statistics=wanted,
    )
    right = header(FEDAVG, 0, FLOAT32)
    for without in (msgspec.UNSET, True):
        told = msgspec.structs.replace(right, without_statistics=without, mode=FEDAVG.method.mode)
        content = encode_frame(told, Pattern.full(LAYOUT), random_weights(LAYOUT, 1))
        if wanted == (without is msgspec.UNSET):
            check_update(content, asked)
            continue
        with pytest.raises(FrameError, match="BatchNorm's statistics, which is not what the task asked for"):
            check_update(content, asked)
