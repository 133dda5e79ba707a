"""What one sample's forward pass costs: multiply-accumulates, counted while the model runs.

The convention is that of early pytorch-OpCounter, normalisation left out, and it gives all fifteen figures of FjORD's
Table 2 (arXiv:2102.13451). Counting the biases of linear layers as well, or leaving out those of convolutions, misses
some of them.

* A matrix product or a convolution counts one for each product, whoever calls it.
* A convolution's bias counts one for each output; a linear layer's is where its sum starts, and counts nothing.
* A recurrent layer counts, at each step and beside its products: one for each gate's sum and for each bias added to
  it, and for each unit one for each product or sum that follows: 4 in an LSTM, 4 in a GRU, none in a plain RNN.
* Lookups, pooling, normalisation, activations and residual sums count nothing.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mkldnn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from exporter.multihead import replace_attention

__all__ = ["count_macs", "count_parameters"]

_CONVOLUTIONS = (
    *(torch.conv1d, torch.conv2d, torch.conv3d),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
)
_FURTHER = {
    torch.lstm: 4,
    torch.lstm_cell: 4,
    torch.gru: 4,
    torch.gru_cell: 4,
    torch.rnn_tanh: 0,
    torch.rnn_tanh_cell: 0,
    torch.rnn_relu: 0,
    torch.rnn_relu_cell: 0,
}
"""Products and sums of a unit and step that follow its gates."""


def count_parameters(model: nn.Module) -> int:
    """How many trained numbers the model has; a tensor used twice counts once, buffers do not count."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(
    model: nn.Module,
    *,
    input_shape: tuple[int, ...],
    input_dtype: torch.dtype = torch.float32,
    tensors: Mapping[str, Tensor] | None = None,
) -> int:
    """Count the multiply-accumulates of one sample's forward pass, by this module's convention.

    Parameters
    ----------
    model
        Takes ``[1, *input_shape]``; left as it is.
    input_shape
        One sample without the batch axis; of a token model ``(1,)`` gives the cost of one position.
    input_dtype
        The inputs' type; they are zeros.
    tensors
        Parameters and buffers that take the place of the model's own, by name: compact ones give the cost at their
        width. A BatchNorm's statistics follow its weight, a GroupNorm's groups too, and a depthwise convolution's
        groups its filters; the layers of one recurrent module must be equally wide.
    """
    sized = replace_attention(copy.deepcopy(model)).eval()
    fitted = _fit(sized, tensors or {})
    products = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mv: _matrix_vector})
    extras = _Extras()
    with _no_fused_kernels(), products, extras:
        functional_call(sized, fitted, (torch.zeros(1, *input_shape, dtype=input_dtype),))
    return products.get_total_flops() // 2 + extras.count


def _matrix_vector(matrix: Sequence[int], *_: object, **__: object) -> int:
    """What torch's counter has no formula for; two operations a product, as it counts."""
    return 2 * matrix[0] * matrix[1]


@contextmanager
def _no_fused_kernels() -> Iterator[None]:
    """The LSTM of oneDNN, and flash attention, would hide their products from the counter."""
    enabled = mkldnn.enabled
    # Not mkldnn.flags, which warns of a precision that no CPU has.
    mkldnn.enabled = False  # type: ignore[assignment]  # a descriptor that torch does not type
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mkldnn.enabled = enabled


class _Extras(TorchFunctionMode):
    """Counts what is no product: the biases of convolutions, and the rest of a recurrent unit's arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        if func in _CONVOLUTIONS:
            bias = args[2] if len(args) > 2 else kwargs.get("bias")
            self.count += 0 if bias is None else outputs.numel()
        elif func in _FURTHER:
            steps = args[0].numel() // args[0].shape[-1]
            weights = args[2:] if isinstance(args[2], Tensor) else args[2]
            self.count += steps * _beside_products(weights, _FURTHER[func])
        return outputs


def _beside_products(weights: Sequence[Tensor | None], further: int) -> int:
    """One step of one sample; of each layer and direction ``[G*H, I]``, ``[G*H, H]`` and perhaps two biases."""
    given = [weight for weight in weights if weight is not None]
    recurrent = [weight for weight in given if weight.ndim == 2][1::2]
    sums = sum(weight.shape[0] + further * weight.shape[1] for weight in recurrent)
    return sums + sum(weight.numel() for weight in given if weight.ndim == 1)


def _fit(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give modules the sizes that their tensors have; returns the tensors with all that must follow them."""
    fitted = {**dict(model.named_parameters()), **dict(model.named_buffers()), **tensors}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        match module:
            case nn.RNNBase():
                module.input_size = fitted[f"{prefix}weight_ih_l0"].shape[1]
                module.hidden_size = fitted[f"{prefix}weight_hh_l0"].shape[1]
            case nn.RNNCellBase():
                module.hidden_size = fitted[f"{prefix}weight_hh"].shape[1]
            case nn.Conv1d() | nn.Conv2d() | nn.Conv3d() if module.groups > 1:
                filters = fitted[f"{prefix}weight"].shape[0]
                module.groups = module.groups * filters // module.out_channels
            case nn.GroupNorm() if module.affine:
                channels = fitted[f"{prefix}weight"].shape[0]
                module.num_groups = module.num_groups * channels // module.num_channels
            case nn.BatchNorm1d() | nn.BatchNorm2d() | nn.BatchNorm3d() if module.affine:
                shape = fitted[f"{prefix}weight"].shape
                statistics = {f"{prefix}{own}" for own in ("running_mean", "running_var")} & fitted.keys()
                fitted.update({name: torch.ones(shape) for name in statistics})
    return fitted
