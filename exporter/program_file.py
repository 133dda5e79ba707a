"""An exported program as the bytes of a ``.pt2`` file, which ``torch.export.load`` reads."""

import io
from collections.abc import Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

__all__ = ["program_bytes"]


def program_bytes(exported: ExportedProgram, extra_files: Mapping[str, str] | None = None) -> bytes:
    """The same program is the same bytes, whichever process traced it; takes the example inputs from ``exported``."""
    exported.example_inputs = None  # weights of no meaning, which would be saved along
    for graph in exported.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, GraphModule) else ():
            node.meta.pop("from_node", None)  # has the memory address of the graph that the node was traced from
    file = io.BytesIO()
    torch.export.save(exported, file, extra_files=dict(extra_files or {}))
    return file.getvalue()
