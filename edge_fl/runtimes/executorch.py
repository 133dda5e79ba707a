"""ExecuTorch: one static program for each width and batch, run by the wheel's C++ libraries without torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle, Program
from edge_fl.runtimes._executorch.native import NativeProgram, set_threads
from edge_fl.runtimes.base import Compiled, Runtime

__all__ = ["RUNTIME", "ExecutorchRuntime"]


class ExecutorchRuntime(Runtime):
    """A bundle in ExecuTorch. ``threads`` are the whole process's."""

    name = "executorch"
    package = "executorch"

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        set_threads(threads)

    @classmethod
    def installed(cls) -> str:
        """The wheel's version, once the shim is compiled and loaded."""
        set_threads(1)
        return super().installed()

    def load(self, program: Program) -> Compiled:
        """A ``.pte``."""
        native = NativeProgram(self.bundle.read(program.file), str(self.bundle.root / program.file))

        def run(inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
            return native.run([np.require(array, requirements=["C", "A"]) for array in inputs])

        return run


RUNTIME = ExecutorchRuntime
