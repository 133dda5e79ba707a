"""torch itself, operation by operation: the reference, and what a device without another runtime can use."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle, Program
from edge_fl.runtimes._pt2 import load_program
from edge_fl.runtimes._tensors import arrays_of, tensors_of
from edge_fl.runtimes.base import Compiled, Runtime

__all__ = ["RUNTIME", "TorchEagerRuntime", "load_program"]


class TorchEagerRuntime(Runtime):
    """A bundle in torch. ``threads`` are the whole process's."""

    name = "torch_eager"
    package = "torch"

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        torch.set_num_threads(threads)

    def load(self, program: Program) -> Compiled:
        """An exported graph; raises BundleError where it is more than data."""
        where = f"'{self.bundle.root / program.file}'"
        exported = load_program(self.bundle.read(program.file), where)
        graph = exported.module(check_guards=False)

        def run(inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
            with torch.no_grad():
                return arrays_of(graph(*tensors_of(inputs)))

        return run


RUNTIME = TorchEagerRuntime
