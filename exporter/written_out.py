"""How a model runs while it is followed or traced: in operations that every part of the exporter knows."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.nn.modules import transformer

from exporter.attention import PlainAttention
from exporter.dropout_calls import Undropped
from exporter.plain_functions import PlainFunctions
from exporter.recurrent.known_zeros import KnownZeros
from exporter.recurrent.linear import FlatLinear

__all__ = ["written_out"]


@contextmanager
def written_out() -> Iterator[PlainAttention]:
    """Attention is written out, linear layers are flat, nothing is dropped, zeros are known, no shortcuts of torch."""
    fast, attention = torch.backends.mha.get_fastpath_enabled(), PlainAttention()
    torch.backends.mha.set_fastpath_enabled(False)  # an operation for a whole encoder layer, which has no gradient
    try:
        with ExitStack() as stack:
            stack.enter_context(Undropped())  # what says otherwise lies above
            if "transformers" in sys.modules:
                stack.enter_context(_exporting())
            stack.enter_context(_causality_as_said())
            stack.enter_context(attention)
            stack.enter_context(FlatLinear())
            stack.enter_context(PlainFunctions())
            stack.enter_context(KnownZeros())
            yield attention
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _exporting() -> Iterator[None]:
    """Hugging Face's models ask torch whether they are exported before they branch on values."""
    compiler = torch.compiler
    before = compiler._is_compiling_flag, compiler._is_exporting_flag
    compiler._is_compiling_flag = compiler._is_exporting_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag = before


@contextmanager
def _causality_as_said() -> Iterator[None]:
    """Encoders of torch look into a mask to see whether it is causal; the mask itself counts here, whichever it is."""
    detect = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect
