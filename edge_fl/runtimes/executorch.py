"""ExecuTorch: one static program for each width and batch, run by the wheel's C++ libraries without torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.bundle import Bundle
from edge_fl.errors import BundleError
from edge_fl.runtimes._executorch.native import NativeProgram, set_threads
from edge_fl.runtimes.base import Batch, EvalProgram, Runtime, TrainStep, eval_program, step_program
from edge_fl.selection import Weights

__all__ = ["RUNTIME", "ExecutorchRuntime"]


class _Step(TrainStep):
    def __init__(self, program: NativeProgram, tensors: list[str]) -> None:
        self._program = program
        self._tensors = tensors

    def __call__(
        self, weights: Weights, batch: Batch, *, lr: float, scale: float
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        scalars = [np.array(lr, np.float32), np.array(scale, np.float32)]
        loss, *new = self._program.run([*_inputs(self._tensors, weights, batch), *scalars])
        return float(loss), dict(zip(self._tensors, new, strict=True))


class _Evaluation(EvalProgram):
    """Cuts any batch into pieces of the program's size; the last is padded with samples of weight 0."""

    def __init__(self, program: NativeProgram, tensors: list[str], size: int) -> None:
        self._program = program
        self._tensors = tensors
        self._size = size

    def __call__(self, weights: Weights, batch: Batch) -> tuple[float, NDArray[np.float32]]:
        total, outputs = 0.0, []
        for start in range(0, len(batch.x), self._size):
            piece = slice(start, start + self._size)
            x, y, weight = (_padded(array[piece], self._size) for array in (batch.x, batch.y, batch.weight))
            if not weight.any():
                weight[0] = 1  # a mean over nothing would be NaN; it counts for nothing below
            piece_of = Batch(x=x, y=y, weight=weight)
            loss, values = self._program.run(_inputs(self._tensors, weights, piece_of))
            total += float(loss) * float(batch.weight[piece].sum())
            outputs.append(values[: len(batch.x[piece])])
        return total / float(batch.weight.sum()), np.concatenate(outputs)


class ExecutorchRuntime(Runtime):
    """A bundle in ExecuTorch; a program is loaded once and kept. ``threads`` are the whole process's."""

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        set_threads(threads)
        self._tensors = [tensor.name for tensor in bundle.layout.tensors]
        self._programs: dict[str, NativeProgram] = {}

    def train_step(self, counts: Mapping[str, int], batch: int, variant: str = "plain") -> TrainStep:
        """The program compiled for exactly these counts and this batch."""
        program = step_program(self.bundle, "executorch", variant, counts, batch)
        return _Step(self._program(program.file), self._tensors)

    def evaluator(self) -> EvalProgram:
        """The full model's evaluation program."""
        program = eval_program(self.bundle, "executorch")
        if program.batch is None:
            raise BundleError(f"The bundle's program '{program.file}' does not say what batch it evaluates.")
        return _Evaluation(self._program(program.file), self._tensors, program.batch)

    def _program(self, file: str) -> NativeProgram:
        if file not in self._programs:
            self._programs[file] = NativeProgram(self.bundle.read(file), str(self.bundle.root / file))
        return self._programs[file]


def _inputs(names: list[str], weights: Weights, batch: Batch) -> list[NDArray[Any]]:
    """The weights in the order of ``names``, then x, y and sample weight, each in C order."""
    arrays = [*(weights[name] for name in names), batch.x, batch.y, batch.weight]
    return [np.require(array, requirements=["C", "A"]) for array in arrays]


def _padded(array: NDArray[Any], size: int) -> NDArray[Any]:
    padded = np.zeros((size, *array.shape[1:]), dtype=array.dtype)
    padded[: len(array)] = array
    return padded


RUNTIME = ExecutorchRuntime
