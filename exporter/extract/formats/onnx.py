"""ONNX with the weights as initializers, for any batch."""

from collections.abc import Mapping

import onnx
import torch
from torch.export import ExportedProgram

from edge_fl.errors import UnsupportedModelError
from exporter.sentence import first_line

__all__ = ["BATCH", "RUNTIME", "SUFFIX", "save"]

SUFFIX = ".onnx"
BATCH = None
RUNTIME = "onnx"
_OPSET = 18
_IR_VERSION = 10  # what onnxruntime 1.19 still reads


def save(exported: ExportedProgram, properties: Mapping[str, str]) -> bytes:
    """A model from ``x`` to ``outputs``, with ``properties`` as its metadata."""
    try:
        translated = torch.onnx.export(
            exported,
            dynamo=True,
            opset_version=_OPSET,
            verbose=False,
            input_names=["x"],
            output_names=["outputs"],
        )
    except torch.onnx.errors.OnnxExporterError as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise UnsupportedModelError(
            f"ONNX has no translation for an operation of the model: {first_line(cause)}."
        ) from error
    assert translated is not None
    model = translated.model_proto
    model.ir_version = _IR_VERSION
    for node in model.graph.node:  # stack traces of the exporter
        del node.metadata_props[:]
        node.doc_string = ""
    for value in [*model.graph.value_info, *model.graph.input, *model.graph.output]:
        del value.metadata_props[:]
    onnx.helper.set_model_props(model, dict(properties))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())
