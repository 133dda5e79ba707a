"""Compiling for ExecuTorch in one walk, held to ExecuTorch's own way: the same parts, the same results, bit for bit."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.backend.canonical_partitioners import group_partitioner
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from executorch.exir.lowered_backend_module import get_lowered_submodules
from executorch.extension.pybindings import _C
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx.passes.infra import partitioner
from torch.nn import functional

from edge_fl.core.errors import UnsupportedModelError
from exporter.lower._edge import UNCHECKED, to_edge
from exporter.lower._xnnpack import delegate
from exporter.lower.executorch import to_executorch
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.quiet import quiet
from exporter.trace import export_function, trace_function
from tests.exporter.programs import with_gradients

PROPOSED = GroupBasedPartitioner.propose_partitions
VIEWERS = group_partitioner._DependencyViewer, partitioner._DependencyViewer
Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


def convolutional() -> Case:
    """Two convolutions, normalised over the batch, pooled: what a ResNet's step is made of."""

    def outputs(x: Tensor, first: Tensor, scale: Tensor, second: Tensor, last: Tensor) -> Tensor:
        hidden = functional.conv2d(x, first, padding=1)
        mean = hidden.mean((0, 2, 3), keepdim=True)
        hidden = functional.max_pool2d(functional.relu((hidden - mean) * scale.reshape(4, 1, 1) + 2), 2)
        hidden = functional.relu(functional.conv2d(hidden, second, stride=2, padding=1) - 1)
        return functional.log_softmax(functional.linear(hidden.flatten(1), last), dim=1)

    shapes = [(2, 3, 8, 8), (4, 3, 3, 3), (4,), (5, 4, 3, 3), (3, 20)]
    return outputs, tuple(torch.randn(shape) for shape in shapes)


def joined() -> Case:
    """Seven parts put together, of which XNNPACK takes five at once, and whole slices."""

    def outputs(x: Tensor, w: Tensor) -> Tensor:
        parts = [torch.tanh(x[:, i : i + 2] * w) for i in range(7)]
        return torch.cat(parts, dim=1)[:, 0:14].mean(dim=1) / 3

    return outputs, (torch.randn(4, 8), torch.randn(4, 2))


def pooled() -> Case:
    """The mean over an image, for which XNNPACK has another layout."""

    def outputs(x: Tensor, w: Tensor) -> Tensor:
        return functional.relu(x * w).mean(dim=[2, 3], keepdim=True) * w

    return outputs, (torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4))


def parted() -> Case:
    """Steps that come and go between XNNPACK and kernels it does not have, so that some parts must stay apart."""

    def outputs(x: Tensor, w: Tensor) -> Tensor:
        state = x
        for step in range(4):
            summed = torch.cumsum(state * w, dim=1)
            state = torch.tanh(summed + state * (step + 1)) * torch.sigmoid(x + w)
        return state

    return outputs, (torch.randn(4, 6), torch.randn(4, 6))


def normed() -> Case:
    """A cosine, as XCiT's attention has it: ExecuTorch has a kernel of no norm."""

    def outputs(x: Tensor, w: Tensor) -> Tensor:
        return (functional.normalize(x, dim=1) * functional.normalize(w, dim=1)).sum(1)

    return outputs, (torch.randn(4, 6), torch.randn(4, 6))


CASES = {"convolutional": convolutional, "joined": joined, "normed": normed, "parted": parted, "pooled": pooled}


def plainly(exported: ExportedProgram) -> EdgeProgramManager:
    return to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])


def quickly(exported: ExportedProgram) -> EdgeProgramManager:
    return EdgeProgramManager(delegate(to_edge(exported)), compile_config=UNCHECKED)


def delegated(edge: EdgeProgramManager) -> list[list[str]]:
    """The operations of each part, but for copies of copies and reshapes, of which there are fewer here."""
    parts = get_lowered_submodules(edge.exported_program().graph_module)
    nodes = [part.original_module.graph.nodes for _, part, _ in parts]
    moved = re.compile("clone|view_copy")
    return sorted(
        sorted(str(n.target) for n in part if n.op == "call_function" and not moved.search(str(n.target)))
        for part in nodes
    )


def called(program: ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def results(edge: EdgeProgramManager, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    data = edge.to_executorch().buffer
    program = _C._load_program_from_buffer(data)
    return [tensor.clone() for tensor in program.load_method("forward")(inputs)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.matrix if name in ("joined", "parted", "convolutional", "pooled") else ()
        )
        for name in CASES
    ],
)
def test_the_programs_are_those_of_executorchs_own_way(name: str) -> None:
    torch.manual_seed(0)
    function, inputs = CASES[name]()
    step, table = with_gradients(function), executorch_decompositions()
    with quiet():
        plain = plainly(export_function(step, inputs, table))
        quick = quickly(trace_function(step, inputs, table))
        theirs, ours = results(plain, inputs), results(quick, inputs)

    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert delegated(quick) == delegated(plain)
    for a, b in zip(ours, step(*inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gelus_gradient_is_torchs_and_has_no_erf() -> None:
    edges = [0.0, -0.0, 1e-12, -3e-12, 1e-16, -1e-16, 1e-20, -1e-38, 1e18, -1e18]
    x = torch.cat([torch.linspace(-12, 12, 999), torch.tensor(edges)])
    step = with_gradients(lambda x, w: functional.gelu(x) * w)
    inputs = (x, torch.ones_like(x))
    with quiet():
        program = trace_function(step, inputs, executorch_decompositions())
        names = called(program)
        ours = results(quickly(program), inputs)

    assert not any("erf" in name for name in names)
    for a, b in zip(ours, step(*inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_gelus_gradient_in_half_precision_is_torchs() -> None:
    x = torch.tensor([0.0, 1e-5, 1e-3, 2.0], dtype=torch.float16)
    gradient = executorch_decompositions()[torch.ops.aten.gelu_backward.default](torch.ones_like(x), x)
    torch.testing.assert_close(gradient, torch.ops.aten.gelu_backward(torch.ones_like(x), x))


@pytest.mark.parametrize(
    ("axes", "kept"),
    [([0], False), ([0, 1], True), ([2], True), ([-1, -2], False), ([0, 1, 2], False), ([1], True)],
)
def test_sums_over_first_or_last_axes_are_products(axes: list[int], kept: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5)
    with quiet():
        program = trace_function(lambda x: (x.sum(axes, keepdim=kept),), (x,), executorch_decompositions())
        names = called(program)
        (ours,) = results(quickly(program), (x,))

    assert any("bmm" in name for name in names) == (axes != [1])
    torch.testing.assert_close(ours, x.sum(axes, keepdim=kept), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "x",
    [torch.arange(6).reshape(2, 3), torch.ones(300, 400), torch.ones(200_000, 2)],
    ids=["whole", "all", "tall"],
)
def test_what_a_product_would_be_slower_for_is_summed_as_it_is(x: Tensor) -> None:
    axes = [0, 1] if x.shape == (300, 400) else [0]
    with quiet():
        program = trace_function(lambda x: (x.sum(axes),), (x,), executorch_decompositions())
        names = called(program)
        (ours,) = results(quickly(program), (x,))
    assert any("sum" in name for name in names)
    assert torch.equal(ours, x.sum(axes))


def test_what_is_reshaped_twice_is_copied_once() -> None:
    def twice(x: Tensor) -> tuple[Tensor, ...]:
        y = (x * 2).reshape(6, 4).reshape(2, 12).reshape(2, 12).expand(2, 12) + 1
        return y, y.reshape(2, 12), x.reshape(2, 3, 4), y.expand(2, 12)

    x = torch.randn(2, 3, 4)
    with quiet():
        names = called(to_edge(trace_function(twice, (x,), executorch_decompositions())))
        ours = results(quickly(trace_function(twice, (x,), executorch_decompositions())), (x,))
    # One of what is computed, and one of the input, which must not go out as it is.
    assert len([name for name in names if "view_copy" in name]) == 2
    assert not any("expand" in name for name in names)
    for a, b in zip(ours, twice(x), strict=True):
        torch.testing.assert_close(a, b)


def test_a_part_with_another_operation_gets_every_pass() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4, 4)
    usual = executorch_decompositions()
    table = {name: rule for name, rule in usual.items() if "avg_pool2d" not in str(name)}
    with quiet():
        edge = quickly(trace_function(lambda x: (functional.avg_pool2d(x * x, 2) + 1,), (x,), table))
        (ours,) = results(edge, (x,))

    assert "aten.avg_pool2d" in str(delegated(edge))
    torch.testing.assert_close(ours, functional.avg_pool2d(x * x, 2) + 1)


@pytest.mark.parametrize("fails", [False, True])
def test_xnnpacks_compiler_is_left_as_it_was(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    if fails:
        monkeypatch.setattr(xnnpack_preprocess, "serialize_xnnpack_binary", refuse)
    exported = trace_function(lambda x: (x * 2,), (torch.ones(3),), executorch_decompositions())

    with quiet():
        if fails:
            with pytest.raises(UnsupportedModelError, match=r"cannot compile .* no such kernel"):
                to_executorch(exported)
        else:
            assert to_executorch(exported)
    assert xnnpack_preprocess.XNNPACKPassManager is XNNPACKPassManager
    assert GroupBasedPartitioner.propose_partitions is PROPOSED
    assert (group_partitioner._DependencyViewer, partitioner._DependencyViewer) == VIEWERS
