"""Which models can be exported at all; everything else is refused before a second is spent on it."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from edge_fl.errors import DataError, ModelError, UnsupportedModelError
from exporter.sentence import first_line

__all__ = ["accept"]

_SUPPORTED = (nn.Linear, nn.LayerNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def accept(model: nn.Module, *, input_shape: tuple[int, ...], classes: int) -> None:
    """Check that ``model`` maps ``[B, *input_shape]`` float32 to ``[B, classes]`` in a way that can be traced.

    Raises
    ------
    UnsupportedModelError
        Naming the module or parameter that cannot be exported, and the way out.
    ModelError
        When the forward pass raises.
    DataError
        When the outputs are not one number per class.
    """
    _modules(model)
    _parameters(model)
    x = torch.randn(3, *input_shape, generator=torch.Generator().manual_seed(0))
    outputs = _forward(model, x)
    if not isinstance(outputs, Tensor) or outputs.shape != (3, classes):
        found = tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise DataError(f"The model gives {found} for one sample; the data set has {classes} classes.")
    again = _forward(model, x)
    if not isinstance(again, Tensor) or not torch.equal(outputs, again):
        raise UnsupportedModelError(
            "The model gives two outputs for one input: remove what draws random numbers or keeps state."
        )
    _traceable(model, x)


def _modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind, where = type(module).__name__, name or "the model itself"
        if isinstance(module, _DROPOUTS) and module.p > 0:
            raise UnsupportedModelError(
                f"'{where}' is a {kind} with p={module.p}: set p to 0 or remove it, edge-fl drops units itself."
            )
        holds = [n for n, _ in module.named_parameters(recurse=False)]
        holds += [n for n, _ in module.named_buffers(recurse=False)]
        if holds and not isinstance(module, _SUPPORTED):
            raise UnsupportedModelError(
                f"'{where}' is a {kind} and holds '{holds[0]}': only Linear and LayerNorm layers may hold any; "
                "replace it by linear layers."
            )


def _parameters(model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    if not parameters:
        raise UnsupportedModelError("The model has no parameters: there is nothing to train.")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UnsupportedModelError(f"The parameter '{name}' is {kind}: call model.float() where it is built.")
        if not parameter.requires_grad:
            raise UnsupportedModelError(
                f"The parameter '{name}' is frozen: every parameter is trained, so set requires_grad on it."
            )
        if not torch.isfinite(parameter).all():
            raise UnsupportedModelError(
                f"The parameter '{name}' holds NaN or infinity: repair its values where the model is built."
            )


def _forward(model: nn.Module, x: Tensor) -> object:
    try:
        with torch.no_grad():
            return model(x)
    except Exception as error:  # the forward pass is the user's code
        shape = tuple(x.shape)
        raise ModelError(f"The model's forward fails on a batch of shape {shape}: {first_line(error)}.") from error


def _traceable(model: nn.Module, x: Tensor) -> None:
    names = tuple(name for name, _ in model.named_parameters())

    def forward(x: Tensor, *parameters: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, dict(zip(names, parameters, strict=True)), (x,))
        return outputs

    try:
        make_fx(forward, tracing_mode="symbolic")(x, *(p.detach() for p in model.parameters()))
    except Exception as error:  # torch raises many types for control flow that hangs on values
        raise UnsupportedModelError(
            f"The model's forward cannot be traced ({first_line(error)}): let no Python branch hang on the "
            "values of tensors; use torch.where instead."
        ) from error
