"""ExecuTorch: one static program for each width and batch.

Its C++ bindings are taken as they are: ``executorch.runtime`` around them imports the whole compiler, which makes
a device three seconds slower to start.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from executorch.extension.pybindings import _C
from numpy.typing import NDArray

from edge_fl.bundle import Bundle
from edge_fl.errors import BundleError
from edge_fl.runtimes._tensors import arrays_of, scalars, tensors_of
from edge_fl.runtimes.base import Batch, EvalProgram, Runtime, TrainStep, eval_program, step_program
from edge_fl.selection import Weights

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

    def run(self, inputs: Sequence[object]) -> list[NDArray[np.float32]]:
        return arrays_of(self._method(inputs))


class _Step(TrainStep):
    def __init__(self, method: _Method, tensors: list[str]) -> None:
        self._method = method
        self._tensors = tensors

    def __call__(
        self, weights: Weights, batch: Batch, *, lr: float, scale: float
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        loss, *new = self._method.run([*tensors_of(self._tensors, weights, batch), *scalars(lr, scale)])
        return float(loss), dict(zip(self._tensors, new, strict=True))


class _Evaluation(EvalProgram):
    """Cuts any batch into pieces of the program's size; the last is padded with samples of weight 0."""

    def __init__(self, method: _Method, tensors: list[str], size: int) -> None:
        self._method = method
        self._tensors = tensors
        self._size = size

    def __call__(self, weights: Weights, batch: Batch) -> tuple[float, NDArray[np.float32]]:
        total, outputs = 0.0, []
        for start in range(0, len(batch.x), self._size):
            piece = slice(start, start + self._size)
            x, y, weight = (_padded(array[piece], self._size) for array in (batch.x, batch.y, batch.weight))
            if not weight.any():
                weight[0] = 1  # a mean over nothing would be NaN; it counts for nothing below
            loss, values = self._method.run(tensors_of(self._tensors, weights, Batch(x=x, y=y, weight=weight)))
            total += float(loss) * float(batch.weight[piece].sum())
            outputs.append(values[: len(batch.x[piece])])
        return total / float(batch.weight.sum()), np.concatenate(outputs)


class ExecutorchRuntime(Runtime):
    """A bundle in ExecuTorch; a program is loaded once and kept. ``threads`` are the whole process's."""

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        with _native_stderr_closed():
            _C._unsafe_reset_threadpool(threads)
        # torch copies the outputs, and on a busy machine its second thread makes a step 20 times slower.
        torch.set_num_threads(threads)
        self._tensors = [tensor.name for tensor in bundle.layout.tensors]
        self._methods: dict[str, _Method] = {}

    def train_step(self, counts: Mapping[str, int], batch: int, variant: str = "plain") -> TrainStep:
        """The program compiled for exactly these counts and this batch."""
        program = step_program(self.bundle, "executorch", variant, counts, batch)
        return _Step(self._method(program.file), self._tensors)

    def evaluator(self) -> EvalProgram:
        """The full model's evaluation program."""
        program = eval_program(self.bundle, "executorch")
        if program.batch is None:
            raise BundleError(f"The bundle's program '{program.file}' does not say what batch it evaluates.")
        return _Evaluation(self._method(program.file), self._tensors, program.batch)

    def _method(self, file: str) -> _Method:
        if file not in self._methods:
            self._methods[file] = _Method(self.bundle.read(file), str(self.bundle.root / file))
        return self._methods[file]


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


def _padded(array: NDArray[Any], size: int) -> NDArray[Any]:
    padded = np.zeros((size, *array.shape[1:]), dtype=array.dtype)
    padded[: len(array)] = array
    return padded


RUNTIME = ExecutorchRuntime
