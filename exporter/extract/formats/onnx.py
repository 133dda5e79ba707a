"""ONNX with the weights as initializers, for any batch."""

from collections.abc import Mapping, Sequence

import onnx
from torch.export import ExportedProgram

from exporter.extract.formats import Format
from exporter.lower.onnx import translate

__all__ = ["FORMAT"]


def _save(exported: ExportedProgram, inputs: Sequence[str], properties: Mapping[str, str]) -> bytes:
    """A model from ``inputs`` to ``outputs``, with ``properties`` as its metadata."""
    model = translate(exported, list(inputs), ["outputs"])
    onnx.helper.set_model_props(model, dict(properties))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


FORMAT = Format(suffix=".onnx", batch=None, runtime="onnx", save=_save)
