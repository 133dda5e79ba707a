"""ExecuTorch with XNNPACK, for one sample at a time: its programs are static."""

from collections.abc import Mapping, Sequence

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch.export import ExportedProgram

from edge_fl.core.errors import UnsupportedModelError
from exporter.extract.formats import Format
from exporter.sentence import first_line

__all__ = ["FORMAT"]


def _save(exported: ExportedProgram, inputs: Sequence[str], properties: Mapping[str, str]) -> bytes:
    """A ``.pte`` file, which has no place for names and ``properties``."""
    del inputs, properties
    try:
        edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        return bytes(edge.to_executorch().buffer)
    except Exception as error:  # its passes raise many types on what they do not know
        raise UnsupportedModelError(
            f"ExecuTorch cannot compile an operation of the model: {first_line(error)}."
        ) from error


FORMAT = Format(suffix=".pte", batch=1, runtime="executorch", save=_save)
