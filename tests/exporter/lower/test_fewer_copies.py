"""Graphs for ExecuTorch with fewer reshapes and transposes: the same results, and as many as are needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.nn import functional

from edge_fl.core.inputs import Input
from exporter.export import Target, export_bundle
from exporter.limits import LIMIT
from exporter.lower import executorch
from exporter.lower._reshapes import sink_reshapes
from exporter.lower._transposes import share_transposes
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.passes.common import share_common
from exporter.quiet import quiet
from exporter.steps import STEPS
from exporter.trace import trace_function
from exporter.zoo import mlp
from tests.exporter.programs import in_executorch, largest_difference, with_gradients
from tests.exporter.sources import source

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


def test_equal_numbers_are_normalised_to_none() -> None:
    """Shares of 1/n are rounded, and one over a standard deviation of none is large."""
    x = torch.tensor([100.0, 1000.0, 11000.0]).reshape(3, 1).expand(3, 48).clone()
    (result,) = in_executorch(lambda x: (functional.layer_norm(x, (48,)),), (x,))(x)
    assert not result.any()


@pytest.mark.parametrize(
    ("shape", "features", "given"),
    [
        ((3, 4, 6, 5), 2, ("weight", "bias")),
        ((3, 4, 30), 1, ("weight", "bias")),
        ((3, 4, 30), 1, ("weight",)),
        ((3, 4, 6, 5), 2, ()),
        ((30,), 1, ("weight", "bias")),
    ],
)
def test_layer_norm_is_products_and_has_torchs_gradients(
    shape: tuple[int, ...], features: int, given: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    scales = torch.tensor([0.1, 1.0, 30.0]).reshape(3, *[1] * (len(shape) - 1)) if len(shape) > 1 else 1.0
    x, normalised = torch.randn(shape) * scales + 20.0, shape[-features:]

    def outputs(x: Tensor, *learned: Tensor) -> Tensor:
        named = dict(zip(given, learned, strict=True))
        return functional.layer_norm(x, normalised, named.get("weight"), named.get("bias"))

    step, inputs = with_gradients(outputs), (x, *(torch.rand(normalised) + 0.5 for _ in given))
    names = {str(node.target) for node in traced(step, inputs).graph.nodes}
    assert not any("layer_norm" in name for name in names)
    exact = step(*(tensor.double() for tensor in inputs))
    ours = largest_difference([t.double() for t in in_executorch(step, inputs)(*inputs)], exact)
    theirs = largest_difference([t.double() for t in step(*inputs)], exact)
    assert ours < 3 * theirs + 1e-6


@pytest.mark.parametrize("shape", [(2, 3, 40, 8), (20, 64, 1, 8), (2, 3, 4, 5, 7)])
def test_rows_of_four_axes_are_summed(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    (result,) = in_executorch(lambda x: (x.sum(-1),), (x,))(x)
    torch.testing.assert_close(result, x.sum(-1), rtol=1e-5, atol=1e-6)


def test_results_that_are_one_value_and_inputs_that_go_out_have_memory_of_their_own() -> None:
    def outputs(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return y.reshape(60), y.reshape(3, 20), y, x.reshape(12, 5), x.reshape(12, 5).reshape(3, 4, 5)

    x = torch.randn(3, 4, 5)
    for ours, theirs in zip(in_executorch(outputs, (x,))(x), outputs(x), strict=True):
        assert torch.equal(ours, theirs)


class _ByKeyword(nn.Module):
    """Dense layers, one called by keyword, with more outputs than weights in a batch of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.second(input=torch.relu(self.first(x))))
        return self.last(hidden)  # type: ignore[no-any-return]


@pytest.mark.matrix
def test_layers_with_more_outputs_than_weights_are_proven_with_noise_too(tmp_path: Path) -> None:
    """Another hook's change of the outputs stays: vardrop's noise is one."""
    torch.manual_seed(0)
    target = Target(
        "model",
        "made-up",
        Input((6,), "float32"),
        3,
        ("executorch",),
        widths=(1000,),
        batch=16,
        variants=("plain", "vardrop"),
    )
    proof = export_bundle(_ByKeyword(), target, tmp_path / "bundle").manifest.parity["executorch"]
    assert proof.weights <= LIMIT


def test_weights_are_scaled_where_a_dense_layer_has_more_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that ExecuTorch gets multiply nothing of the batch's size by the scale."""
    scaled: dict[int, list[int]] = {}

    def compiled(exported: ExportedProgram) -> bytes:
        inputs = exported.graph.find_nodes(op="placeholder")[-len(step.inputs) :]
        scale = dict(zip(step.inputs, inputs, strict=True))["scale"]
        scaled[batch] = [user.meta["val"].numel() for user in scale.users]
        return b""

    monkeypatch.setattr(executorch, "to_executorch", compiled)
    whole = source(mlp.mlp(inputs=6, hidden=8, classes=3), (6,), 3)
    step = STEPS.find("plain")(whole)
    for batch in (2, 100):
        with quiet():
            executorch._compiled(step, whole.full, batch)
    assert max(scaled[2]) == 2 * 8
    assert max(scaled[100]) == 8 * 8
