"""A torch ExportedProgram, for any batch; ``torch.export.load`` reads it."""

import io
import json
from collections.abc import Mapping

import torch
from torch.export import ExportedProgram

__all__ = ["BATCH", "RUNTIME", "SUFFIX", "save"]

SUFFIX = ".pt2"
BATCH = None
RUNTIME = "torch_eager"
_PROPERTIES = "properties.json"


def save(exported: ExportedProgram, properties: Mapping[str, str]) -> bytes:
    """A ``.pt2`` file, with ``properties`` as the extra file ``properties.json``."""
    exported.example_inputs = None
    file = io.BytesIO()
    torch.export.save(exported, file, extra_files={_PROPERTIES: json.dumps(dict(properties))})
    return file.getvalue()
