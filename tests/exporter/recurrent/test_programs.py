"""Train steps of recurrent models, traced as the exporter does, in the real runtimes."""

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings import _C
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call, grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx

from exporter.decompositions import core_decompositions
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.recurrent import replace_recurrent, unrolled

STEPS, FEATURES = 3, 5
KINDS: dict[str, Callable[..., nn.Module]] = {
    "lstm": lambda: nn.LSTM(FEATURES, 7, 2, batch_first=True),
    "gru": lambda: nn.GRU(FEATURES, 7, batch_first=True),
    "tanh": lambda: nn.RNN(FEATURES, 7, batch_first=True, bidirectional=True),
    "relu": lambda: nn.RNN(FEATURES, 7, batch_first=True, nonlinearity="relu", bias=False),
}


def _weights(module: nn.Module, units: dict[str, int]) -> dict[str, Tensor]:
    """Random weights of other numbers of units, ``units`` of each layer ("l0")."""
    weights = {}
    for name, parameter in module.named_parameters():
        layer = name.split("_")[2]
        gates = parameter.shape[0] // 7
        below = f"l{int(layer[1:]) - 1}"
        columns = units[layer] if "_hh" in name else units.get(below, FEATURES)
        shape = (gates * units[layer], columns)[: parameter.dim()]
        weights[name] = torch.randn(*shape) / 3
    return weights


def _step(module: nn.Module) -> Callable[..., tuple[Tensor, ...]]:
    names = [name for name, _ in module.named_parameters()]

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        *kept, x, lr = inputs

        def loss(kept: tuple[Tensor, ...]) -> Tensor:
            outputs, last = functional_call(module, dict(zip(names, kept, strict=True)), (x,))
            last = last[0] if isinstance(last, tuple) else last
            return (outputs.square().mean() + last[-1].exp().mean()).reshape(())

        gradients, value = grad_and_value(loss)(tuple(kept))
        return (value, *(w - lr * g for w, g in zip(kept, gradients, strict=True)))

    return step


def _inputs(module: nn.Module, units: dict[str, int], batch: int) -> tuple[Tensor, ...]:
    x = torch.randn(batch, STEPS, FEATURES)
    return (*_weights(module, units).values(), x, torch.tensor(0.1))


def _layers(module: nn.Module) -> list[str]:
    return sorted({name.split("_")[2] for name, _ in module.named_parameters()})


def _symbolic(step: Callable[..., tuple[Tensor, ...]], example: tuple[Tensor, ...]) -> ExportedProgram:
    graph = make_fx(step, decomposition_table=core_decompositions(), tracing_mode="symbolic")(*example)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    dims = [dict.fromkeys(range(tensor.dim()), Dim.AUTO) for tensor in example]
    dims[-2] = {0: Dim.AUTO}
    return torch.export.export(graph, example, dynamic_shapes=tuple(dims), strict=False)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_one_onnx_program_trains_any_units_and_batch(kind: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = replace_recurrent(KINDS[kind]())
    step, layers = _step(module), _layers(module)
    exported = _symbolic(step, _inputs(module, dict(zip(layers, (9, 11), strict=False)), 3))
    translated = torch.onnx.export(exported, dynamo=True, opset_version=18, verbose=False)
    assert translated is not None
    model = translated.model_proto
    model.ir_version = 10
    loops = 2 * len(layers) * (2 if kind == "tanh" else 1)
    assert sum(node.op_type == "Scan" for node in model.graph.node) == loops
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [value.name for value in session.get_inputs()]
    for counts, batch in (((7, 7), 4), ((2, 5), 3), ((6, 1), 1)):
        inputs = _inputs(module, dict(zip(layers, counts, strict=False)), batch)
        arrays = session.run(None, {n: t.numpy() for n, t in zip(names, inputs, strict=True)})
        for ours, torchs in zip(arrays, step(*inputs), strict=True):
            np.testing.assert_allclose(ours, torchs.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.matrix
def test_written_out_an_lstm_trains_in_executorch() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = replace_recurrent(nn.LSTM(FEATURES, 7, batch_first=True))
    step, units = _step(module), {"l0": 6}
    with unrolled():
        graph = make_fx(step, decomposition_table=dict(executorch_decompositions()))(*_inputs(module, units, 3))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    exported = torch.export.export(graph, _inputs(module, units, 3), strict=False)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    data = edge.to_executorch().buffer  # the loaded program points into it
    program = _C._load_for_executorch_from_buffer(data)
    for _ in range(2):
        inputs = _inputs(module, units, 3)
        for ours, torchs in zip(program.run_method("forward", inputs), step(*inputs), strict=True):
            torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-6)
