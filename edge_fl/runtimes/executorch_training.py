"""ExecuTorch's training format: a program holds its parameters and gives their gradients, for one width and batch.

The files are those of ExecuTorch's own ``TrainingModule`` (C++, Java, Python): its outputs are the loss and what else
the model gives, then gradients, then the parameters themselves; metadata methods say which are which. Its C++
bindings are taken as they are: the module around them imports the whole compiler, and copies all gradients.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from executorch.extension.pybindings import _C
from numpy.typing import NDArray

from edge_fl.bundle import Bundle, Program
from edge_fl.errors import BundleError
from edge_fl.runtimes._gradients import Gradients, step_of
from edge_fl.runtimes._tensors import arrays_of, tensors_of
from edge_fl.runtimes.base import Compiled, Runtime

__all__ = ["RUNTIME", "ExecutorchTrainingRuntime"]

_METHOD = "forward"


class _Step:
    """A loaded training program."""

    def __init__(self, module: Any, program: Program) -> None:
        self._module = module
        self._names: list[str] = module.run_method(f"__et_training_fqn_{_METHOD}", ())
        self._gradients: int = module.run_method(f"__et_training_gradients_index_{_METHOD}", ())[0]
        self._parameters: int = module.run_method(f"__et_training_parameters_index_{_METHOD}", ())[0]
        # What the program takes besides the parameters that it holds, in the order it was traced with.
        self._inputs = [name for name in program.inputs if name not in self._names and not _is_ours(name)]
        self._statistics = [n for n in program.outputs if n.startswith("new.tensor.") and n[4:] not in self._names]
        self._held: list[torch.Tensor] = []

    def differentiate(self, inputs: Mapping[str, NDArray[Any]]) -> Gradients:
        given = tensors_of([inputs[name] for name in self._inputs])
        if not self._held:  # they are to be had from a run only
            self._held = self._run(given)[self._parameters :]
        for held, new in zip(self._held, tensors_of([inputs[name] for name in self._names]), strict=True):
            held.copy_(new)
        outputs = arrays_of(self._run(given)[: self._parameters])
        loss, *statistics = outputs[: self._gradients]
        return Gradients(
            loss.copy(),
            dict(zip(self._names, outputs[self._gradients :], strict=True)),
            {name: array.copy() for name, array in zip(self._statistics, statistics, strict=True)},
        )

    def _run(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = self._module.run_method(_METHOD, given, clone_outputs=False)
        return outputs


def _is_ours(name: str) -> bool:
    """Whether an input of a step is the optimiser's, which is no part of the program."""
    return name in ("lr", "number") or name.partition(".")[0] in ("momentum", "exp_avg", "exp_avg_sq")


class ExecutorchTrainingRuntime(Runtime):
    """A bundle in ExecuTorch, trained in its own way. ``threads`` are the whole process's."""

    name = "executorch_training"

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        with _native_stderr_closed():
            _C._unsafe_reset_threadpool(threads)
        torch.set_num_threads(threads)

    def load(self, program: Program) -> Compiled:
        """A module of a ``.pte``."""
        try:
            module = _C._load_for_executorch_from_buffer(self.bundle.read(program.file))
            if program.kind == "eval":
                return lambda inputs: arrays_of(module.run_method(_METHOD, tensors_of(inputs)))
            return step_of(program, self.bundle.manifest.optimizer, _Step(module, program).differentiate)
        except RuntimeError as error:
            where = self.bundle.root / program.file
            raise BundleError(f"ExecuTorch cannot load '{where}': {str(error).strip()}.") from error


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


RUNTIME = ExecutorchTrainingRuntime
