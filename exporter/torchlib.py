"""The ONNX translations of torch's operations, which torch would collect anew for each program (a second each)."""

from functools import cache

from torch.onnx._internal.exporter._registration import ONNXRegistry

__all__ = ["translations"]

_OPSET = 18  # that torch's translations are written in


@cache
def translations() -> ONNXRegistry:
    """All of them; whoever exports a program reads and does not change them."""
    return ONNXRegistry.from_torchlib(opset_version=_OPSET)
