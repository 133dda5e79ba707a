"""A torch ExportedProgram, for any batch; ``torch.export.load`` reads it."""

import io
import json
from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram

from exporter.extract.formats import Format

__all__ = ["FORMAT"]

_PROPERTIES = "properties.json"


def _save(exported: ExportedProgram, inputs: Sequence[str], properties: Mapping[str, str]) -> bytes:
    """A ``.pt2`` file, with ``properties`` as the extra file ``properties.json``."""
    del inputs  # a program of torch's takes them by place
    exported.example_inputs = None
    file = io.BytesIO()
    torch.export.save(exported, file, extra_files={_PROPERTIES: json.dumps(dict(properties))})
    return file.getvalue()


FORMAT = Format(suffix=".pt2", batch=None, runtime="torch_eager", save=_save)
