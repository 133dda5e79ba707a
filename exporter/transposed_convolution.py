"""``nn.ConvTranspose1d`` and ``2d`` as convolutions, whose gradients every runtime has."""

import math
from typing import TypeGuard

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["TRANSPOSED", "TransposedConvolution", "can_transpose"]

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d)
"""Layers that have such a form; their weight is ``[inputs, outputs, ...]``."""


def can_transpose(module: nn.Module) -> TypeGuard[nn.ConvTranspose1d | nn.ConvTranspose2d]:
    """Whether it is one of them, without groups."""
    return type(module) in TRANSPOSED and isinstance(module, TRANSPOSED) and module.groups == 1


class TransposedConvolution(nn.Module):
    """A convolution of the input with zeros between its pixels, by the weight turned round.

    Where the kernel is as large as the stride, as where U-Net grows, every pixel becomes a patch of its own: one
    product, without zeros.
    """

    def __init__(self, module: nn.ConvTranspose1d | nn.ConvTranspose2d) -> None:
        super().__init__()
        self.weight, self.bias = module.weight, module.bias
        self.kernel, self.strides, self.dilation = module.kernel_size, module.stride, module.dilation
        assert not isinstance(module.padding, str)
        self.padding, self.output_padding = module.padding, module.output_padding
        self.convolve = functional.conv1d if isinstance(module, nn.ConvTranspose1d) else functional.conv2d
        self.train(module.training)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inputs, ...]`` to ``[B, outputs, ...]``."""
        plain = not any((*self.padding, *self.output_padding)) and math.prod(self.dilation) == 1
        outputs = self._patches(x) if plain and self.kernel == self.strides else self._between_zeros(x)
        if self.bias is None:
            return outputs
        return outputs + self.bias.reshape(-1, *[1] * len(self.kernel))

    def _patches(self, x: Tensor) -> Tensor:
        axes, lengths = len(self.kernel), x.shape[2:]
        flat = self.weight.flatten(1).t()
        patches = self.convolve(x, flat.reshape(*flat.shape, *[1] * axes))
        found = patches.reshape(x.shape[0], -1, *self.kernel, *lengths)
        order = [axis for place in range(axes) for axis in (2 + axes + place, 2 + place)]
        grown = [length * size for length, size in zip(lengths, self.kernel, strict=True)]
        return found.permute(0, 1, *order).reshape(x.shape[0], -1, *grown)

    def _between_zeros(self, x: Tensor) -> Tensor:
        axes = len(self.kernel)
        spread, margins = x, list[int]()
        for axis in range(axes):
            step = self.strides[axis]
            if step > 1:
                apart = functional.pad(spread.unsqueeze(3 + axis), [0, 0] * (axes - 1 - axis) + [0, step - 1])
                spread = apart.flatten(2 + axis, 3 + axis)
            reach = self.dilation[axis] * (self.kernel[axis] - 1) - self.padding[axis]
            # Behind the last pixel there are zeros already.
            margins = [reach, reach + self.output_padding[axis] - (step - 1), *margins]
        turned = self.weight.transpose(0, 1).flip(list(range(2, 2 + axes)))
        return self.convolve(functional.pad(spread, margins), turned, dilation=self.dilation)
