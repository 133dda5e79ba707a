"""The global model: what a round's updates, and the server's own step, make of it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from broker.model import GlobalModel
from edge_fl.compressors.base import DECODERS, open_compressor
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
    model = GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=recipe, run="r", max_samples=samples)
    aggregate(model, [(0, honest), (1, boasting)])
    for name, before in random_weights(LAYOUT, 0).items():
        expected = before + (every[0][name] + every[1][name]) / 2
        np.testing.assert_allclose(model.weights[name], expected, rtol=1e-5, atol=1e-6)


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
