"""Graphs for ExecuTorch with fewer reshapes and transposes: the same results, and as many as are needed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.nn import functional

from exporter.forward import scaled_where_smaller
from exporter.lower._reshapes import sink_reshapes
from exporter.lower._transposes import share_transposes
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.passes.common import share_common
from exporter.quiet import quiet
from exporter.trace import trace_function
from tests.exporter.programs import in_executorch, largest_difference, with_gradients

ATEN = torch.ops.aten
Case = tuple[Callable[..., Any], tuple[Tensor, ...], int]


def residual() -> Case:
    """A reshaped product added to what it came from, by a vector and by a number a row."""

    def outputs(x: Tensor, w: Tensor, bias: Tensor, rows: Tensor) -> Tensor:
        y = (x.reshape(1, 12, 5) @ w.reshape(1, 5, 5)).reshape(12, 5) + bias
        z = torch.exp(-y.reshape(3, 4, 5)) * rows + x
        return functional.gelu(z) * 2.0

    return outputs, (torch.randn(3, 4, 5), torch.randn(5, 5), torch.randn(5), torch.randn(3, 4, 1)), 4


def attended() -> Case:
    """Softmax over the last axis, of scores that a product of batches gave."""

    def outputs(x: Tensor) -> Tensor:
        scores = torch.bmm(x, x.transpose(1, 2)).reshape(2, 3, 4, 4)
        return torch.bmm(torch.softmax(scores, -1).expand(2, 3, 4, 4).reshape(6, 4, 4), x)

    return outputs, (torch.randn(6, 4, 5),), 0


def across() -> Case:
    """Softmax over another axis, and a mask of one number for some axes that the reshape merges: both stay."""

    def outputs(x: Tensor, mask: Tensor) -> Tensor:
        y = (x + 1).reshape(2, 3, 4)
        return torch.softmax(y, 1) * mask + (x * 2).reshape(2, 3, 4) * mask

    return outputs, (torch.randn(6, 4), torch.randn(2, 1, 4)), 2


def flattened() -> Case:
    """A last axis that the reshape merges with another: as between convolutions."""

    def outputs(x: Tensor) -> Tensor:
        return ((x * 2).reshape(3, 20) + 1).exp() * 3

    return outputs, (torch.randn(3, 4, 5),), 1


def passed_through() -> Case:
    """An input that goes out reshaped, once in its own shape."""

    def outputs(x: Tensor) -> tuple[Tensor, ...]:
        return x.reshape(12, 5), x.reshape(12, 5).reshape(3, 4, 5), (x + 1).reshape(60)

    return outputs, (torch.randn(3, 4, 5),), 3


CASES = [residual, attended, across, flattened, passed_through]


def traced(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> ExportedProgram:
    with quiet():
        return trace_function(function, inputs, executorch_decompositions())


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def run(program: ExportedProgram, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    program.graph.lint()
    results = GraphModule(program.graph_module, program.graph)(*program.constants.values(), *inputs)
    return tuple(results)


def count(program: ExportedProgram, target: Any) -> int:
    program.graph.eliminate_dead_code()
    return len(program.graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_sunk_reshapes_change_no_result(case: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    function, inputs, reshapes = case()
    wanted = as_tuple(function(*inputs))
    program = traced(lambda *given: as_tuple(function(*given)), inputs)
    sink_reshapes(program.graph)
    results = run(program, inputs)

    assert [result.shape for result in results] == [tensor.shape for tensor in wanted]
    assert largest_difference(results, wanted) < 1e-6
    assert count(program, ATEN.reshape.default) == reshapes


@pytest.mark.parametrize("case", [residual, attended, across, flattened], ids=lambda case: case.__name__)
def test_executorch_computes_the_same_with_gradients(case: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    function, inputs, _ = case()
    step = with_gradients(function)
    assert largest_difference(in_executorch(step, inputs)(*inputs), step(*inputs)) < 1e-5


def test_a_dense_layers_gradients_transpose_once() -> None:
    """The gradient of the weight takes the outputs' transposed, and that of the bias sums the same rows."""

    def outputs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.tanh(functional.linear(x, weight, bias))

    torch.manual_seed(0)
    inputs = torch.randn(6, 40, 7), torch.randn(5, 7), torch.randn(5)
    step = with_gradients(outputs)
    program = traced(step, inputs)
    sink_reshapes(program.graph)
    share_transposes(program.graph)
    share_common(program.graph)

    assert largest_difference(run(program, inputs), step(*inputs)) < 1e-5
    program.graph.eliminate_dead_code()
    permuted = program.graph.find_nodes(op="call_function", target=ATEN.permute.default)
    (transposed,) = [node for node in permuted if 240 in node.meta["val"].shape]
    assert [user.target for user in transposed.users] == [ATEN.bmm.default] * 2


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_is_products_and_has_torchs_gradients(affine: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 6, 5) * torch.tensor([0.1, 1.0, 30.0]).reshape(3, 1, 1, 1) + 20.0
    given = (torch.rand(6, 5) + 0.5, torch.randn(6, 5)) if affine else ()

    def outputs(x: Tensor, *given: Tensor) -> Tensor:
        weight, bias = given or (None, None)
        return functional.layer_norm(x, (6, 5), weight, bias)

    step, inputs = with_gradients(outputs), (x, *given)
    program = traced(step, inputs)
    names = {str(node.target) for node in program.graph.nodes}
    assert not any("layer_norm" in name for name in names)
    exact = step(*(tensor.double() for tensor in inputs))
    ours = largest_difference([t.double() for t in in_executorch(step, inputs)(*inputs)], exact)
    theirs = largest_difference([t.double() for t in step(*inputs)], exact)
    assert ours < 3 * theirs + 1e-6


def test_a_dense_layer_is_scaled_by_what_is_smaller() -> None:
    """Weights where there are more outputs, and outputs where a layer has more weights."""
    from exporter.forward import _is_large, _scaled_layer

    torch.manual_seed(0)
    layer, scale = torch.nn.Linear(6, 4), torch.tensor(1.7)
    few, many = torch.randn(2, 6), torch.randn(9, 6)
    assert not _is_large(layer(many), layer)
    with scaled_where_smaller():
        assert _is_large(layer(many), layer)
        assert not _is_large(layer(few), layer)
        assert not _is_large(torch.randn(99), torch.nn.Conv1d(1, 1, 1))
    torch.testing.assert_close(_scaled_layer(layer, (many,), scale), layer(many) * scale)
