"""Models that give more than one tensor: of Hugging Face's outputs, and of a dict, ``logits`` are trained."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from exporter.one_pass import one_pass

__all__ = ["with_plain_outputs"]


def with_plain_outputs(model: nn.Module, x: Tensor) -> nn.Module:
    """``model``, or where its forward of ``x`` gives something with ``logits``, a copy that gives those alone."""
    try:
        outputs = one_pass(model, x)
    except Exception:  # whoever calls the model next says what is wrong with it
        return model
    if isinstance(outputs, Tensor) or not isinstance(_logits(outputs), Tensor):
        return model
    plain = copy.deepcopy(model)
    plain.register_forward_hook(_give_logits)
    return plain


def _give_logits(_: nn.Module, __: Any, outputs: Any) -> Any:
    return _logits(outputs)


def _logits(outputs: Any) -> Any:
    return outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
