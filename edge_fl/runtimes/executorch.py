"""ExecuTorch: one static program for each width and batch.

Its C++ bindings are taken as they are: ``executorch.runtime`` around them imports the whole compiler, which makes
a device three seconds slower to start.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from executorch.extension.pybindings import _C
from numpy.typing import NDArray

from edge_fl.bundle import Bundle, Program
from edge_fl.errors import BundleError
from edge_fl.runtimes._tensors import arrays_of, tensors_of
from edge_fl.runtimes.base import Compiled, Runtime

__all__ = ["RUNTIME", "ExecutorchRuntime"]


class _Method:
    """A loaded program's one method, and everything that must live as long as it."""

    def __init__(self, data: bytes, where: str) -> None:
        try:
            # The program points into ``data``, the method into the program.
            self._data = data
            self._program = _C._load_program_from_buffer(data)
            self._method = self._program.load_method("forward")
        except RuntimeError as error:
            raise BundleError(f"ExecuTorch cannot load '{where}': {str(error).strip()}.") from error

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        return arrays_of(self._method(tensors_of(inputs)))


class ExecutorchRuntime(Runtime):
    """A bundle in ExecuTorch. ``threads`` are the whole process's."""

    name = "executorch"

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        with _native_stderr_closed():
            _C._unsafe_reset_threadpool(threads)
        # torch copies the outputs, and on a busy machine its second thread makes a step 20 times slower.
        torch.set_num_threads(threads)

    def load(self, program: Program) -> Compiled:
        """A method of a ``.pte``."""
        return _Method(self.bundle.read(program.file), str(self.bundle.root / program.file)).run


@contextlib.contextmanager
def _native_stderr_closed() -> Iterator[None]:
    """The thread pool writes what it reads of the processor to file descriptor 2, past ``sys.stderr``."""
    sys.stderr.flush()
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


RUNTIME = ExecutorchRuntime
