"""Where a model draws dropout: calls of torch's functions, of which somebody else says what they drop."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from edge_fl.core.errors import UnsupportedModelError
from exporter.attention import FUSED, attend
from exporter.source import DropoutPlace

__all__ = ["GivenMasks", "MaskedDropout", "Undropped"]

_OF_ENTRIES = (functional.dropout, torch.dropout)
_OF_CHANNELS = {  # with the axes of one sample, where torch takes fewer than its name says for a batch
    functional.dropout1d: 2,
    functional.dropout2d: None,
    functional.dropout3d: 4,
    torch.feature_dropout: None,
}
_ALPHA = (
    *(functional.alpha_dropout, functional.feature_alpha_dropout),
    *(torch.alpha_dropout, torch.feature_alpha_dropout),
)
_ATTENTION = functional.multi_head_attention_forward
_ATTENDING = inspect.signature(_ATTENTION)
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class Undropped(TorchFunctionMode):
    """While active, nothing is dropped, in training too: what is drawn by other functions stays random."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` so that it keeps everything."""
        given = dict(kwargs or {})
        if func in _OF_ENTRIES or func in _OF_CHANNELS or func in _ALPHA:
            return _parts(*args, **given)[0]
        if func in FUSED:
            args, given = (*args[:4], *([0.0] if len(args) > 4 else []), *args[5:]), {**given, "dropout_p": 0.0}
            given = {name: value for name, value in given.items() if name != "dropout_p" or len(args) <= 4}
        if func is _ATTENTION:
            call = _ATTENDING.bind(*args, **given)
            call.arguments["training"] = False
            args, given = call.args, call.kwargs
        if func in _RECURRENT:
            place = 5 if isinstance(args[3], bool) else 6  # a packed sequence has one argument more
            args = (*args[:place], 0.0, *args[place + 1 :])
        if (p := _share_drawn(func, args, given)) is not None:
            return args[0].fill_(p)
        return func(*args, **given)


class MaskedDropout(TorchFunctionMode):
    """While active, calls that draw dropout multiply by the masks that :meth:`mask` gives.

    These are ``dropout`` of single entries and of channels, ``bernoulli_`` with a number (stochastic depth), and
    ``scaled_dot_product_attention``. Raises UnsupportedModelError on alpha dropout, and on an attention of torch's that
    draws by itself.
    """

    @abstractmethod
    def mask(self, x: Tensor, shape: Sequence[int], p: float) -> Tensor | None:
        """What to multiply ``x`` by: of ``shape``, 0 where a share ``p`` is dropped, 1 / (1 - p) elsewhere.

        None stands for ones.
        """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or what is as good."""
        given = kwargs or {}
        if func in _OF_ENTRIES or func in _OF_CHANNELS:
            x, p, training = _parts(*args, **given)
            alone = x.dim() == _OF_CHANNELS.get(func)
            channels = (*x.shape[: 1 if alone else 2], *[1] * (x.dim() - (1 if alone else 2)))
            return self._dropped(x, p if training else 0.0, x.shape if func in _OF_ENTRIES else channels)
        if func in FUSED:
            return attend(*args, **given, drop=self._dropped)
        if (share := _share_drawn(func, args, given)) is not None:
            mask = self.mask(args[0], args[0].shape, 1 - share)
            return args[0].fill_(share) if mask is None else args[0].copy_(mask * share)
        if func in _ALPHA and all(_parts(*args, **given)[1:]):
            raise UnsupportedModelError(
                "No program draws alpha dropout: take dropout, or export with --no-dropout."
            )
        if func is _ATTENTION and _draws(_ATTENDING.bind(*args, **given)):
            raise UnsupportedModelError(
                "An nn.MultiheadAttention with bias_k or add_zero_attn draws its dropout by itself: export with "
                "--no-dropout."
            )
        return func(*args, **given)

    def _dropped(self, x: Tensor, p: float, shape: Sequence[int] | None = None) -> Tensor:
        """``x`` times a mask of ``shape``, or of its own."""
        if not p:
            return x
        if p == 1:
            return x * 0.0
        mask = self.mask(x, x.shape if shape is None else shape, p)
        return x if mask is None else x * mask


class GivenMasks(MaskedDropout):
    """While active, one forward pass drops by the masks among a step's ``inputs``.

    Parameters
    ----------
    places
        The calls of dropout of the pass, in order; None for one that drops nothing.
    inputs
        By name, the masks ``[B, ...]`` among them.
    """

    def __init__(self, places: Sequence[DropoutPlace | None], inputs: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._places, self._inputs = iter(places), inputs

    def mask(self, x: Tensor, shape: Sequence[int], p: float) -> Tensor | None:
        """That of the next place."""
        del x, shape, p
        place = next(self._places, None)
        return None if place is None else place.arranged(self._inputs[place.dropout.input])


def _parts(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **named: bool
) -> tuple[Tensor, float, bool]:
    """The arguments of a call of dropout, as torch names them; some of its functions have ``train``."""
    del inplace
    return input, float(p), named.get("train", training)


def _draws(call: inspect.BoundArguments) -> bool:
    return bool(call.arguments.get("training", True) and call.arguments["dropout_p"] > 0)


def _share_drawn(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The share of ones of a ``bernoulli_`` with a number between 0 and 1."""
    if func is not Tensor.bernoulli_:
        return None
    share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return float(share) if isinstance(share, Real) and 0 < float(share) < 1 else None
