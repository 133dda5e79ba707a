"""Casts where torch promotes types, held to torch's own pass, which computes every value again."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.onnx._internal.exporter._fx_passes import insert_type_promotion_nodes

from exporter.onnx_promotion import promote_types


def mixed(x: Tensor, y: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """Floats of two sizes, whole numbers, numbers of Python's, comparisons; what is promoted is used again."""
    whole = n + y.sum().to(torch.int64)
    both = x * n + y
    return both, whole / 2, torch.where(n > 1.5, both, x), torch.sigmoid(n) * 2, x.to(torch.float16) * y


def doubled(carried: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    return carried + row * 2, carried.clone()


def looped(x: Tensor, y: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """A loop, whose body is a graph in the graph."""
    from torch._higher_order_ops.scan import scan

    last, every = scan(doubled, x.new_zeros(4), x)
    return last * n[0] + y[0], every


def graph_of(function: Any) -> GraphModule:
    batch = torch.export.Dim("batch", min=2)
    example = (torch.randn(3, 4), torch.randn(3, 4), torch.arange(12).reshape(3, 4))

    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor, n: Tensor) -> tuple[Tensor, ...]:
            return function(x, y, n)  # type: ignore[no-any-return]

    exported = torch.export.export(Module(), example, dynamic_shapes=({0: batch},) * 3, strict=False)
    graph = exported.run_decompositions().graph_module
    assert isinstance(graph, GraphModule)
    return graph


@pytest.mark.parametrize("function", [mixed, looped])
def test_casts_are_those_of_torch(function: Any) -> None:
    ours, theirs = graph_of(function), graph_of(function)
    before = len(ours.graph.nodes)
    promote_types(ours)
    insert_type_promotion_nodes(theirs)
    assert len(ours.graph.nodes) > before
    modules = zip(ours.modules(), theirs.modules(), strict=True)
    for mine, other in modules:
        if not isinstance(mine, GraphModule):
            continue
        assert str(mine.graph) == str(other.graph)
        for node, same in zip(mine.graph.nodes, other.graph.nodes, strict=True):
            assert _described(node.meta.get("val")) == _described(same.meta.get("val")), node


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, tuple(map(str, value.shape))
    return tuple(map(_described, value)) if isinstance(value, tuple | list) else str(type(value))
