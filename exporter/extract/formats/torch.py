"""A torch ExportedProgram, for any batch; ``torch.export.load`` reads it."""

import json
from collections.abc import Mapping, Sequence

from torch.export import ExportedProgram

from exporter.extract.formats import Format
from exporter.program_file import program_bytes

__all__ = ["FORMAT"]

_PROPERTIES = "properties.json"


def _save(exported: ExportedProgram, inputs: Sequence[str], properties: Mapping[str, str]) -> bytes:
    """A ``.pt2`` file, with ``properties`` as the extra file ``properties.json``."""
    del inputs  # a program of torch's takes them by place
    return program_bytes(exported, {_PROPERTIES: json.dumps(dict(properties))})


FORMAT = Format(suffix=".pt2", batch=None, runtime="torch_eager", save=_save)
