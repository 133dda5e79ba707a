"""The train step of variational dropout (Du et al., after Kingma et al. and Molchanov et al.): a rate for each weight.

A weight of a Linear or Conv2d layer is drawn from N(theta, alpha theta^2) (eq. (2)); theta and log alpha are both
trained. The noise is on the layer's outputs, not on its weights (Kingma et al.'s local reparameterisation):

    outputs = layer(x) + sqrt(layer of x^2 with weights alpha theta^2, no bias) * noise,    noise ~ N(0, 1)

Of each output by itself that is the distribution that drawn weights give, exactly. Drawn weights would be half the
arithmetic (no second product), but one draw would be shared by the batch, whose gradients then hang together: their
variance would not fall with the batch, and log alpha's gradient is little but variance. It is also what the papers do.

Biases and every other layer have no noise; :mod:`exporter.output_noise` says which layers have.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_fl.core.errors import ConfigError, UnsupportedModelError
from exporter.forward import training_loss
from exporter.output_noise import describe_outputs, layer_of
from exporter.source import Port, Source, Step, scalar
from exporter.steps._parts import Arguments
from exporter.steps._parts import build as build_step

__all__ = ["build", "kl_divergence", "noisy_outputs"]

_LEAST_VARIANCE = 1e-8
_ENLARGED = 1e4


def build(source: Source) -> Step:
    """Minimise ``sum(w l) / sum(w) + kl * D_KL`` (eq. (1) over the samples); the loss reported is the first term.

    Beside what every step takes, for each noisy layer, by its weight's NAME, ``log_alpha.NAME`` of the weight's kept
    entries, which the step gives anew and the optimiser has slots for (:func:`edge_fl.core.bundle.slot_name`), and
    ``output_noise.NAME``, ``[B, ...]`` of standard normal numbers, of the kept units' outputs; and ``kl``, 0-d, the
    weight of the divergence: 1 / N for N samples, or less of it at first. log alpha is not bounded: what counts as
    dropped is for whoever reads it.

    Raises
    ------
    UnsupportedModelError
        When the model has no layer that can be noisy.
    ConfigError
        When weights are to decay: the divergence is this step's own penalty, and log alpha must not decay to 0.
    """
    if source.optimizer.weight_decay:
        raise ConfigError("The train step 'vardrop' knows no weight decay, as its divergence is one: set it to 0.")
    noisy = describe_outputs(source)
    if not noisy:
        raise UnsupportedModelError(
            "The train step 'vardrop' needs a Linear or Conv2d layer that the model calls once, on [B, ...]."
        )
    rates = tuple(Port(f"log_alpha.{o.name}", source.layout.tensor(o.name).units) for o in noisy)
    noises = (Port(f"output_noise.{o.name}", o.units, batched=True) for o in noisy)

    def objective(arguments: Arguments) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        inputs = arguments.inputs
        hooks = [
            source.module.get_submodule(layer_of(o)).register_forward_hook(
                _hook(inputs[f"log_alpha.{o.name}"], inputs[f"output_noise.{o.name}"]), with_kwargs=True
            )
            for o in noisy
        ]
        try:
            loss, statistics = training_loss(source, arguments.tensors, inputs)
        finally:
            for hook in hooks:
                hook.remove()
        divergence = torch.stack([kl_divergence(inputs[port.name]) for port in rates]).sum()
        return loss + inputs["kl"] * divergence, (loss, statistics)

    return build_step(source, "vardrop", objective, trained=rates, extra=(*noises, scalar("kl")))


def kl_divergence(log_alpha: Tensor) -> Tensor:
    """Eq. (3), summed over all entries, without its constant: 0-d."""
    negative = -log_alpha
    # log(1 + 1 / alpha) in a form that does not overflow.
    spread = functional.relu(negative) + (1 + (-negative.abs()).exp()).log()
    return (0.5 * spread - 0.64 * torch.sigmoid(1.87 + 1.49 * log_alpha)).sum()


def noisy_outputs(
    layer: nn.Linear | nn.Conv2d, x: Tensor, outputs: Tensor, *, rates: Tensor, noise: Tensor
) -> Tensor:
    """What a layer gives under weights of eq. (2), reparameterised locally.

    Parameters
    ----------
    x, outputs
        What goes into the layer and, without noise, comes out, ``[B, ...]``.
    rates
        log alpha, of the shape of the layer's weight.
    noise
        Standard normal, of the shape of ``outputs``.
    """
    spread = rates.exp() * layer.weight * layer.weight
    if isinstance(layer, nn.Conv2d):
        variance: Tensor = layer._conv_forward(x * x, spread, None)
    else:
        variance = functional.linear(x * x, spread)
    # Enlarged: onnxscript takes so small a number for 0 and drops it, and the root of 0 has no gradient.
    deviation = torch.sqrt(_ENLARGED * variance + _ENLARGED * _LEAST_VARIANCE)
    noisy: Tensor = outputs + deviation * (noise * _ENLARGED**-0.5)
    return noisy


def _hook(rates: Tensor, noise: Tensor) -> Callable[[Any, tuple[Any, ...], dict[str, Any], Tensor], Tensor]:
    def hook(layer: Any, inputs: tuple[Any, ...], named: dict[str, Any], outputs: Tensor) -> Tensor:
        x = inputs[0] if inputs else named["input"]
        return noisy_outputs(layer, x, outputs, rates=rates, noise=noise)

    return hook
