"""Passes change how a graph computes, never what."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from exporter.decompositions import core_decompositions
from exporter.passes import optimise
from tests.exporter.programs import with_gradients


def _applied(x: Tensor, draw: st.DataObject) -> Tensor:  # noqa: PLR0911 - one for each operation
    """One operation on ``x``, which has at least one axis."""
    rank = x.dim()
    axis = draw.draw(st.integers(0, rank - 1))
    match draw.draw(
        st.sampled_from(["permute", "relu", "mix", "sum", "pad", "cut", "cat", "merge", "split", "copy"])
    ):
        case "permute":
            return x.permute(draw.draw(st.permutations(range(rank))))
        case "relu":
            return x.relu()
        case "mix":
            return x * x.sum(axis, keepdim=True) + torch.cos(x)
        case "sum" if rank > 1:
            return x.sum([axis], keepdim=draw.draw(st.booleans()))
        case "pad":
            return functional.pad(x, [1, 0] * (rank - axis))
        case "cut":
            return x.narrow(axis, x.shape[axis] // 2, 1)
        case "cat" if x.numel() < 500:
            return torch.cat([x, x.neg()], axis)
        case "merge" if rank > 2:
            return x.flatten(rank - 2)
        case "split" if x.shape[axis] % 2 == 0 and rank < 6:
            return x.unflatten(axis, (2, x.shape[axis] // 2))
        case "copy":
            return x.clone().contiguous()
    return x


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_graph_of_permutations_and_what_they_sink_through_computes_the_same(data: st.DataObject) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        for _ in range(data.draw(st.integers(2, 9))):
            x = _applied(x, data)
        return x, x.exp().clamp(max=9)

    x = torch.arange(48.0, dtype=torch.float64).reshape(2, 3, 2, 4).sin()
    graph = make_fx(function)(x)
    before = graph(x)

    optimise(graph)

    for ours, theirs in zip(graph(x), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_between_two_convolutions_no_permutation_is_left() -> None:
    def gradients(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        def layers(first: Tensor, second: Tensor) -> Tensor:
            h = functional.max_pool2d(functional.relu6(functional.conv2d(x, first, padding=1)), 2)
            return (functional.conv2d(h, second, padding=1) + h).sum()

        return grad(layers, argnums=(0, 1))(first, second)

    x, first, second = torch.randn(2, 6, 8, 8), torch.randn(5, 6, 3, 3), torch.randn(5, 5, 3, 3)
    graph = make_fx(gradients, decomposition_table=core_decompositions())(x, first, second)

    optimise(graph)

    spatial = [
        node
        for node in graph.graph.nodes
        if node.target is torch.ops.aten.permute.default and node.args[1] in ([1, 2, 3, 0], [3, 0, 1, 2])
    ]
    assert [node.args[0].name for node in spatial if node.args[0].op == "placeholder"] == ["x_1"]
    assert len(spatial) <= 2  # of x, and of the constant gradient that the sum gives


def test_backward_reads_what_forward_has_unfolded() -> None:
    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return functional.conv2d(x, weight, padding=1)

    graph = make_fx(with_gradients(layer), decomposition_table=core_decompositions())(
        torch.randn(2, 6, 8, 8), torch.randn(5, 6, 3, 3)
    )
    optimise(graph)

    assert sum(node.target is torch.ops.aten.cat.default for node in graph.graph.nodes) == 2  # V and E


def test_random_operations_stay_apart() -> None:
    graph = make_fx(lambda x: (torch.rand_like(x), torch.rand_like(x)))(torch.zeros(3))
    optimise(graph)

    one, other = graph(torch.zeros(3))
    assert not torch.equal(one, other)
