"""Low-rank adapters (Hu et al. 2021): the rank is a block of units, so a width of a half trains half of the ranks.

Beside a frozen layer ``y = W x`` an adapter adds ``alpha / r * B A x``. A has r rows, and B starts at zero. Names and
start are those of Hugging Face's PEFT.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from edge_fl.core.errors import ModelError
from exporter.transposed import is_transposed

__all__ = ["LoraLayer", "adapt_layer", "adapter_gains", "most_ranks"]


class LoraLayer(nn.Module):
    """A frozen layer and its adapter.

    The gain is that of the full rank at every width, so ``alpha / r`` is a constant of the program.

    Parameters
    ----------
    base_layer
        What it adapts; its parameters are frozen.
    down, up
        A and B, without biases.
    gain
        alpha / r.
    """

    def __init__(self, base_layer: nn.Module, down: nn.Module, up: nn.Module, *, gain: float) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(requires_grad=False)
        self.lora_A, self.lora_B = down, up
        self.gain = gain

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        """``base_layer(x) + gain * lora_B(lora_A(x))``."""
        outputs: Tensor = self.base_layer(x, *more) + self.lora_B(self.lora_A(x)) * self.gain
        return outputs

    @property
    def weight(self) -> Tensor:
        """The frozen layer's with the adapter's added, for code that reads a weight and does not call the layer.

        torch's attention does so with its output projection, and the shortcut of its encoder layer with all others.
        Linear layers are called, so that a method's factor, which hangs on A, counts here, too.
        """
        base = cast("Tensor", self.base_layer.weight)
        if isinstance(self.base_layer, nn.Conv2d):
            down, up = cast("Tensor", self.lora_A.weight), cast("Tensor", self.lora_B.weight)
            return base + (up.flatten(1) @ down.flatten(1)).reshape(base.shape) * self.gain
        transposed = is_transposed(self.base_layer)
        inputs = base.shape[0 if transposed else 1]
        added: Tensor = self.lora_B(self.lora_A(torch.eye(inputs, dtype=base.dtype))) * self.gain
        return base + (added if transposed else added.T)

    @property
    def bias(self) -> Tensor | None:
        """The frozen layer's: an adapter has none."""
        return self.base_layer.bias  # type: ignore[return-value]


def most_ranks(module: nn.Module) -> int:
    """The largest rank of an adapter of this layer; 0 where there is none for it."""
    if isinstance(module, nn.Conv2d):
        return 0 if module.groups != 1 else min(math.prod(module.weight.shape[1:]), module.out_channels)
    if isinstance(module, nn.Linear) or is_transposed(module):
        return min(module.weight.shape)
    return 0


def adapt_layer(name: str, module: nn.Module, *, rank: int, alpha: float) -> LoraLayer:
    """An adapter of ``rank`` beside ``module``: A is uniform as PEFT has it, B is zero.

    Raises ModelError on a layer that has no adapter, or has fewer ranks.
    """
    most = most_ranks(module)
    if not most:
        kind = "a convolution in groups" if isinstance(module, nn.Conv2d) else f"of type {type(module).__name__}"
        raise ModelError(
            f"'{name}' is {kind}, and adapters are for Linear, Conv2d without groups and GPT-2's Conv1D: leave "
            f"'{name}' out of lora."
        )
    if rank > most:
        raise ModelError(f"'{name}' has no more than {most} ranks, and lora names r={rank}: take a smaller one.")
    down, up = _adapter(module, rank)
    nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5))
    nn.init.zeros_(up.weight)
    return LoraLayer(module, down, up, gain=alpha / rank).train(module.training)


def _adapter(layer: nn.Module, rank: int) -> tuple[nn.Linear | nn.Conv2d, nn.Linear | nn.Conv2d]:
    """A and B of a layer."""
    if isinstance(layer, nn.Conv2d):
        down = nn.Conv2d(
            layer.in_channels,
            rank,
            layer.kernel_size,  # type: ignore[arg-type]  # two numbers each, which torch types as any number
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            bias=False,
            padding_mode=layer.padding_mode,
        )
        return down, nn.Conv2d(rank, layer.out_channels, 1, bias=False)
    weight = cast("Tensor", layer.weight)
    outputs, inputs = weight.T.shape if is_transposed(layer) else weight.shape
    return nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)


def adapter_gains(model: nn.Module) -> dict[str, float]:
    """Alpha / r of every adapter in the model, by the name of the layer that it is beside."""
    return {name: module.gain for name, module in model.named_modules() if isinstance(module, LoraLayer)}
