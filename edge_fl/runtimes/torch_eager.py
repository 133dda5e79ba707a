"""torch itself, operation by operation: the reference, and what a device without another runtime can use."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export.passes import move_to_device_pass
from torch.fx import GraphModule

from edge_fl.core.bundle import Bundle, Program
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.runtimes._pt2 import load_program
from edge_fl.runtimes._tensors import arrays_of, tensors_of
from edge_fl.runtimes.base import Compiled, Runtime

__all__ = ["RUNTIME", "TorchEagerRuntime", "load_program", "open_device", "open_graph"]


class TorchEagerRuntime(Runtime):
    """A bundle in torch, on ``device`` (``cpu`` or ``cuda``). ``threads`` are the whole process's."""

    name = "torch_eager"
    package = "torch"

    def __init__(self, bundle: Bundle, *, threads: int = 1, device: str = "cpu") -> None:
        super().__init__(bundle, threads=threads)
        self._device = open_device(device)
        torch.set_num_threads(threads)

    def load(self, program: Program) -> Compiled:
        """An exported graph; raises BundleError where it is more than data."""
        graph, device = open_graph(self.bundle, program, self._device), self._device

        def run(inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
            with torch.no_grad():
                found = graph(*(tensor.to(device) for tensor in tensors_of(inputs)))
            return arrays_of([output.cpu() for output in found])

        return run


def open_device(name: str) -> torch.device:
    """``cpu`` or ``cuda``; there the same run gives the same weights, in the single precision that devices compute in.

    Raises RuntimeMissingError where there is none.
    """
    if name == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeMissingError(
                "There is no CUDA device here, or torch was built without; use --device cpu."
            )
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


def open_graph(bundle: Bundle, program: Program, device: torch.device) -> GraphModule:
    """A program of ``bundle`` whose operations run on ``device``; raises BundleError where it is more than data."""
    exported = load_program(bundle.read(program.file), f"'{bundle.root / program.file}'")
    if device.type != "cpu":  # where the exporter traced it, and where what it makes itself would lie
        exported = move_to_device_pass(exported, device)
    module = exported.module(check_guards=False)
    assert isinstance(module, GraphModule)
    return module


RUNTIME = TorchEagerRuntime
