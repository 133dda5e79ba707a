"""Which models can be exported at all; everything else is refused before a second is spent on it."""

import copy
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from edge_fl.core.errors import DataError, ModelError, UnsupportedModelError
from edge_fl.core.inputs import Input, NamedInput
from exporter.adapt import adapt
from exporter.dropout_calls import Undropped
from exporter.frozen import BATCH_NORMS
from exporter.named_inputs import named_values
from exporter.one_pass import one_pass
from exporter.own_forward import activates, has_torchs_forward
from exporter.own_outputs import Outputs, Several, flat_outputs, predictions
from exporter.sentence import first_line
from exporter.side_effects import State, changed_attribute, module_state
from exporter.transposed_convolution import TRANSPOSED
from exporter.where import Running, user_line
from exporter.written_out import written_out

__all__ = ["Fit", "accept", "example_inputs"]

_ALPHA_DROPOUTS = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_WITHOUT_KERNELS = {
    nn.ConvTranspose3d: "an upsampling and a convolution",
    nn.Conv3d: "2-d convolutions",
    nn.BatchNorm3d: "BatchNorm2d or GroupNorm",
    nn.SyncBatchNorm: "BatchNorm2d or GroupNorm",
    nn.InstanceNorm1d: "GroupNorm",
    nn.InstanceNorm2d: "GroupNorm",
    nn.EmbeddingBag: "Embedding and a mean",
}


@dataclass(frozen=True)
class Fit:
    """What a model must fit: one sample of its input, and of its outputs one of several (without the batch axis).

    Integer inputs are tokens below ``classes``. ``inputs`` are those of a model that takes several by name.
    """

    input: Input
    outputs: tuple[tuple[int, ...], ...]
    classes: int
    inputs: tuple[NamedInput, ...] = ()


def example_inputs(fit: Fit, batch: int) -> Tensor:
    """``[batch, *input]`` of random values, the same every time."""
    if fit.inputs:
        return torch.from_numpy(named_values(fit.inputs, batch, np.random.default_rng(0)))
    generator = torch.Generator().manual_seed(0)
    if fit.input.dtype == "int64":
        return torch.randint(fit.classes, (batch, *fit.input.shape), generator=generator)
    return torch.randn(batch, *fit.input.shape, generator=generator)


def accept(model: nn.Module, fit: Fit) -> frozenset[str]:
    """Check that ``model`` maps ``[B, *input]`` to one of ``[B, *outputs]`` in a way that can be traced.

    Returns
    -------
    The names of the parameters and buffers that the forward pass reads.

    Raises
    ------
    UnsupportedModelError
        Naming the module or parameter that cannot be exported, and the way out.
    ModelError
        When the forward pass raises.
    DataError
        When the outputs are of another shape.
    """
    _modules(model)
    _parameters(model)
    x = example_inputs(fit, 3)
    model = copy.deepcopy(model)
    before = module_state(model)
    outputs = _forward(model, x, fit.inputs)
    if not _are_plain(outputs) or predictions(outputs).shape not in [(3, *each) for each in fit.outputs]:
        found = tuple(predictions(outputs).shape[1:]) if _are_plain(outputs) else type(outputs).__name__
        needed = " or ".join(map(str, dict.fromkeys(fit.outputs)))
        raise DataError(
            f"The model gives {found} for one sample, and its classes or targets and its loss need {needed}: see "
            f"--classes, --target-shape and --loss{_hint(found, fit)}."
        )
    again = _forward(model, x, fit.inputs)
    if not _are_plain(again) or not _equal(outputs, again):
        raise UnsupportedModelError(
            "The model gives two outputs for one input in training: remove what draws random numbers or keeps state; "
            "what drops as torch's dropout does may stay."
        )
    _no_side_effects(model, before)
    _same_in_evaluation(model, x)
    return _read(model, x)


def _hint(found: object, fit: Fit) -> str:
    """What to give for a class at each position."""
    if (
        isinstance(found, tuple)
        and len(found) > 2
        and found[0] == fit.classes
        and fit.outputs == ((fit.classes,),)
    ):
        return f" (for a class a pixel --target-shape {'x'.join(map(str, found[1:]))} beside --classes)"
    return ""


def _are_plain(outputs: object) -> TypeGuard[Outputs]:
    return isinstance(outputs, Tensor | Several)


def _same_in_evaluation(model: nn.Module, x: Tensor) -> None:
    if not _equal(one_pass(model, x), one_pass(model, x)):
        raise UnsupportedModelError(
            "The model draws random numbers in evaluation, too: remove them, or let it drop in training alone, as in "
            "dropout(x, p, training=self.training)."
        )


def _equal(first: Outputs, second: Outputs) -> bool:
    """Bit for bit, NaN among them."""
    return torch.equal(flat_outputs(first).nan_to_num(), flat_outputs(second).nan_to_num())


def _no_side_effects(model: nn.Module, before: State) -> None:
    changed = changed_attribute(before, module_state(model))
    if changed is not None:
        where, attribute = changed
        raise UnsupportedModelError(
            f"The forward of {_called(where)} changes its attribute '{attribute}', which a program on a device cannot: "
            "return what it computes and keep nothing."
        )


def _called(where: str) -> str:
    return f"'{where}'" if where else "the model itself"


def _modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind, where = type(module).__name__, name or "the model itself"
        if isinstance(module, _ALPHA_DROPOUTS) and module.p > 0:
            raise UnsupportedModelError(
                f"'{where}' is a {kind} with p={module.p}, which no program can draw: take Dropout, or export with "
                "--no-dropout."
            )
        if type(module) in _WITHOUT_KERNELS:
            instead = _WITHOUT_KERNELS[type(module)]
            raise UnsupportedModelError(f"'{where}' is a {kind}, which cannot be trained: use {instead}.")
        if isinstance(module, BATCH_NORMS) and not (has_torchs_forward(module) or activates(module)):
            raise UnsupportedModelError(
                f"'{where}' is a {kind}, whose forward is not that of torch's BatchNorm: use nn.BatchNorm1d or 2d."
            )
        if isinstance(module, TRANSPOSED) and module.groups > 1:
            raise UnsupportedModelError(
                f"'{where}' is a {kind} of {module.groups} groups, which no runtime trains: take one group."
            )
        if isinstance(module, BATCH_NORMS) and (module.running_mean is None or module.momentum is None):
            raise UnsupportedModelError(
                f"'{where}' is a {kind} without running statistics or momentum: give it both, or use GroupNorm."
            )


def _parameters(model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        what = "every parameter of the model is frozen" if parameters else "the model has no parameters"
        raise UnsupportedModelError(f"There is nothing to train: {what}.")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UnsupportedModelError(f"The parameter '{name}' is {kind}: {_instead_of(parameter)}.")
        if not torch.isfinite(parameter).all():
            raise UnsupportedModelError(
                f"The parameter '{name}' holds NaN or infinity: repair its values where the model is built."
            )


def _instead_of(parameter: Tensor) -> str:
    if parameter.is_complex():
        return "make two float32 parameters of its real and imaginary parts"
    if parameter.is_floating_point():
        return "call model.float() where it is built"
    return "it cannot be trained, so make it a buffer (register_buffer)"


def _forward(model: nn.Module, x: Tensor, inputs: tuple[NamedInput, ...]) -> object:
    running = Running(model)
    try:
        with torch.no_grad(), running, Undropped():
            return model(x)
    except Exception as error:  # the forward pass is the user's code
        where = f" in '{running.module}'" if running.module else ""
        tokens = ":int64 behind the shape of an --input" if inputs else "--tokens"
        hint = f"; tokens are whole numbers: give {tokens}" if "'indices'" in str(error) else ""
        taken = ", ".join(f"'{each.name}' of shape {(len(x), *each.shape)}" for each in inputs)
        shape = f"the inputs {taken}" if inputs else f"{len(x)} samples of shape {tuple(x.shape[1:])}"
        raise ModelError(f"The model's forward fails on {shape}{where}: {first_line(error)}{hint}.") from error


def _read(model: nn.Module, x: Tensor) -> frozenset[str]:
    """Trace the forward pass; the names of the parameters and buffers that it reads."""
    adapted = adapt(model)
    held = {**dict(adapted.named_parameters()), **dict(adapted.named_buffers())}

    def forward(x: Tensor, *tensors: Tensor) -> Tensor:
        return flat_outputs(functional_call(adapted, dict(zip(held, tensors, strict=True)), (x,)))

    running = Running(adapted)
    try:
        with running, written_out():
            graph = make_fx(forward, tracing_mode="fake")(x, *(t.detach() for t in held.values())).graph
    except UnsupportedModelError:
        raise
    except Exception as error:  # torch raises many types for control flow that hangs on values
        line = user_line(error)
        raise UnsupportedModelError(
            f"The forward of {_called(running.module)} cannot be traced{f' at {line}' if line else ''} "
            f"({first_line(error)}): let no Python branch or number hang on the values of tensors; use torch.where "
            "instead."
        ) from error
    _, *tensors = graph.find_nodes(op="placeholder")
    return frozenset(name for name, node in zip(held, tensors, strict=True) if node.users)
