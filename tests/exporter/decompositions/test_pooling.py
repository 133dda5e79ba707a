"""Pooling and its gradients against torch's: ties, padding, overlap, windows that hang over the edge."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from exporter.decompositions import core_decompositions
from tests.exporter.programs import in_executorch, in_onnx, largest_difference, with_gradients

POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: functional.max_pool2d(x, 2),
    "max, overlapping and padded": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max, hanging over": lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max, dilated": lambda x: functional.max_pool2d(x, 3, 2, 1, dilation=2),
    "max, with gaps": lambda x: functional.max_pool2d(x, 2, 3),
    "max, oblong": lambda x: functional.max_pool2d(x, (2, 3), (1, 2)),
    "max, of one sample": lambda x: functional.max_pool2d(x[0], 2),
    "average": lambda x: functional.avg_pool2d(x, 2),
    "average, overlapping and padded": lambda x: functional.avg_pool2d(x, 3, 2, 1),
    "average, padding not counted": lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average, hanging over": lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average, with a divisor": lambda x: functional.avg_pool2d(x, 2, divisor_override=3),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(x, (2, 3)),
    "adaptive, uneven": lambda x: functional.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive to more": lambda x: functional.adaptive_avg_pool2d(x, (11, 13)),
    "adaptive to one": lambda x: functional.adaptive_avg_pool2d(x, 1),
}


def with_ties(batch: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randint(-2, 3, (batch, 4, 8, 9)).to(dtype)


@pytest.mark.parametrize("name", POOLS)
def test_written_out_pooling_and_its_gradient_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    x = with_ties(dtype=torch.float64)
    function = with_gradients(POOLS[name])

    graph = make_fx(function, decomposition_table=core_decompositions())(x)

    assert not [node for node in graph.graph.nodes if "pool2d" in str(node.target)]
    assert largest_difference(graph(x), function(x)) < 1e-12


@pytest.mark.parametrize("arguments", [(2,), (3, 2, 1), (3, 2, 1, 2), (2, 3)])
def test_a_model_may_read_where_the_maxima_lie(arguments: tuple[int, ...]) -> None:
    def indices(x: Tensor) -> Tensor:
        return functional.max_pool2d(x, *arguments, return_indices=True)[1]  # type: ignore[call-overload,no-any-return]

    x = with_ties()
    graph = make_fx(indices, decomposition_table=core_decompositions())(x)

    assert torch.equal(graph(x), indices(x))


def _some_pools(x: Tensor) -> tuple[Tensor, ...]:
    names = ("max", "max, overlapping and padded", "average, padding not counted")
    return tuple(result for name in names for result in with_gradients(POOLS[name])(x))


def test_executorch_pools_as_torch_does_call_after_call() -> None:
    """Its own kernel of max pooling's gradient adds to what the call before has left."""
    run = in_executorch(_some_pools, [with_ties()])

    for _ in range(4):
        x = with_ties()
        assert largest_difference(run(x), _some_pools(x)) < 1e-6


@pytest.mark.matrix
def test_one_onnx_program_pools_any_channels_and_batch() -> None:
    run = in_onnx(_some_pools, [torch.randn(6, 5, 8, 9)], [(0, 1)])

    for batch, channels in [(6, 5), (1, 3), (20, 2)]:
        x = torch.randint(-2, 3, (batch, channels, 8, 9)).float()
        assert largest_difference(run(x), _some_pools(x)) < 1e-6
