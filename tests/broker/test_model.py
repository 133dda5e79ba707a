"""The global model: what a round's updates, and the server's own step, make of it."""

from collections.abc import Iterator

import numpy as np

from broker.model import GlobalModel
from edge_fl.bench.models import mlp_layout, random_weights
from edge_fl.compressors.base import open_compressor
from edge_fl.layout import Layout
from edge_fl.pattern import Pattern
from edge_fl.randomness import Stream
from edge_fl.recipe import Recipe, open_recipe
from edge_fl.selection import Selection, Weights
from edge_fl.wire.frame import Frame, Header, decode_frame, encode_frame
from edge_fl.wire.values import flatten

LAYOUT = mlp_layout(5, 8, 6, 3)


def compressed(recipe: Recipe, client: int, delta: Weights, layout: Layout = LAYOUT) -> Frame:
    """A client's dense update, through its compressor and the wire."""
    compressor, pattern = recipe.compressor, Pattern.full(layout)
    assert compressor is not None
    vector = flatten(Selection.of(pattern, "units"), delta)
    memory = {name: np.zeros_like(vector) for name in compressor.memory}
    stream = Stream.of(seed=client, purpose="test")
    section = compressor.compress(vector, memory, round=1, stream=stream).section
    header = Header(
        kind="update",
        run="r",
        round=1,
        version=0,
        layout=layout.digest,
        method=recipe.name,
        client=f"c{client}",
        samples=10 * client + 1,
        values=compressor.name,
    )
    return decode_frame(encode_frame(header, pattern, delta, section), layout)


def deltas(clients: int) -> list[Weights]:
    return [random_weights(LAYOUT, 10 + client) for client in range(clients)]


def updates(recipe: Recipe, every: list[Weights]) -> Iterator[tuple[int, Frame]]:
    return ((0, compressed(recipe, client, delta)) for client, delta in enumerate(every))


def test_a_majority_moves_each_weight_by_the_step_whoever_has_more_samples() -> None:
    recipe, every = open_recipe("fedavg+signsgd", {"signsgd.step": 0.25}), deltas(3)
    model, old = GlobalModel(LAYOUT, random_weights(LAYOUT, 0)), random_weights(LAYOUT, 0)
    model.aggregate(recipe, 1, updates(recipe, every))

    for name, before in old.items():
        for i in np.ndindex(*before.shape):
            positive = sum(bool(delta[name][i] > 0) for delta in every)
            moved = 0.25 if positive >= 2 else -0.25
            assert model.weights[name][i] == np.float32(before[i] + moved)


def test_a_tie_moves_nothing_and_a_weight_without_a_gradient_tosses_a_coin() -> None:
    recipe = open_recipe("fedavg+signsgd", {"signsgd.step": 0.25})
    one = random_weights(LAYOUT, 1)
    model, old = GlobalModel(LAYOUT, random_weights(LAYOUT, 0)), random_weights(LAYOUT, 0)
    model.aggregate(recipe, 1, updates(recipe, [one, {name: -array for name, array in one.items()}]))
    assert all(np.array_equal(model.weights[name], old[name]) for name in old)

    vote, memory = open_compressor("signsgd", {"step": 1.0}), {"residual": np.zeros(4000, np.float32)}
    stream = Stream.of(seed=0, purpose="test")
    done = vote.compress(np.zeros(4000, np.float32), memory, round=1, stream=stream)
    assert done.memory == {}
    assert abs(vote.decompress(memoryview(done.section), 4000).mean()) < 0.1
