"""torch itself, operation by operation: the reference, and what a device without another runtime can use."""

import io
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from edge_fl.bundle import Bundle
from edge_fl.runtimes._tensors import arrays_of, scalars, tensors_of
from edge_fl.runtimes.base import Batch, EvalProgram, Runtime, TrainStep, eval_program, step_program
from edge_fl.selection import Weights

__all__ = ["RUNTIME", "TorchEagerRuntime"]


class _Step(TrainStep):
    def __init__(self, graph: torch.nn.Module, tensors: list[str]) -> None:
        self._graph = graph
        self._tensors = tensors

    def __call__(
        self, weights: Weights, batch: Batch, *, lr: float, scale: float
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        inputs = [*tensors_of(self._tensors, weights, batch), *scalars(lr, scale)]
        with torch.no_grad():
            loss, *new = arrays_of(self._graph(*inputs))
        return float(loss), dict(zip(self._tensors, new, strict=True))


class _Evaluation(EvalProgram):
    def __init__(self, graph: torch.nn.Module, tensors: list[str]) -> None:
        self._graph = graph
        self._tensors = tensors

    def __call__(self, weights: Weights, batch: Batch) -> tuple[float, NDArray[np.float32]]:
        with torch.no_grad():
            loss, outputs = arrays_of(self._graph(*tensors_of(self._tensors, weights, batch)))
        return float(loss), outputs


class TorchEagerRuntime(Runtime):
    """A bundle in torch; a graph is loaded once a program and kept. ``threads`` are the whole process's."""

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        torch.set_num_threads(threads)
        self._tensors = [tensor.name for tensor in bundle.layout.tensors]
        self._graphs: dict[str, torch.nn.Module] = {}

    def train_step(self, counts: Mapping[str, int], batch: int, variant: str = "plain") -> TrainStep:
        """The one program, which takes any counts and batch."""
        program = step_program(self.bundle, "torch_eager", variant, counts, batch)
        return _Step(self._graph(program.file), self._tensors)

    def evaluator(self) -> EvalProgram:
        """The full model's evaluation program."""
        return _Evaluation(self._graph(eval_program(self.bundle, "torch_eager").file), self._tensors)

    def _graph(self, file: str) -> torch.nn.Module:
        if file not in self._graphs:
            exported = torch.export.load(io.BytesIO(self.bundle.read(file)))
            self._graphs[file] = exported.module(check_guards=False)
        return self._graphs[file]


RUNTIME = TorchEagerRuntime
