"""ExecuTorch's training format: a program holds its parameters and gives their gradients, for one width and batch.

The files are those of ExecuTorch's own ``TrainingModule`` (C++, Java, Python): its outputs are what is minimised, the
loss and what else the model gives, then gradients, then the parameters themselves; metadata methods say which are
which. Its C++ bindings are taken as they are: the module around them imports the whole compiler, and copies all
gradients.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from executorch.extension.pybindings import _C
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle, Program, slot_name
from edge_fl.core.errors import BundleError, RunError
from edge_fl.runtimes._gradients import Gradients, step_of
from edge_fl.runtimes._stderr import native_stderr_closed
from edge_fl.runtimes._tensors import arrays_of, tensors_of
from edge_fl.runtimes.base import Compiled, Runtime

__all__ = ["RUNTIME", "ExecutorchTrainingRuntime"]

_METHOD = "forward"
_MARK = slice(4, 8)


class _Module:
    """A loaded file, and the bytes that it points into."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = data, where
        mark = data[_MARK]
        if not (mark.startswith(b"ET") and mark.isascii()):  # the bindings end the process where it is no text
            raise BundleError(f"ExecuTorch cannot load '{where}': it is no program.")
        try:
            # What loads it checks nothing, whatever it is asked for, and a damaged program would end the process.
            _C._load_program_from_buffer(data, program_verification=_C.Verification.InternalConsistency)
            self._module = _C._load_for_executorch_from_buffer(data)
            self._module.method_meta(_METHOD)  # nothing is read before it is asked for
        except (
            RuntimeError,
            ValueError,
            MemoryError,
        ) as error:  # also of names that are no text, and of endless sizes
            raise BundleError(f"ExecuTorch cannot load '{where}': {str(error).strip()}.") from error

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        return arrays_of(self._run(tensors_of(inputs)))

    def uncopied(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        """The outputs where the program has them: parameters may be written, and the next run writes the others."""
        return arrays_of(self._run(tensors_of(inputs), clone_outputs=False))

    def _run(self, tensors: Sequence[torch.Tensor], **how: bool) -> list[torch.Tensor]:
        try:
            outputs: list[torch.Tensor] = self._module.run_method(_METHOD, tensors, **how)
        except RuntimeError as error:
            raise RunError(f"ExecuTorch cannot run '{self._where}': {str(error).strip().rstrip('.')}.") from error
        return outputs

    def metadata(self, what: str) -> list[Any]:
        """What one of the methods that describe a training program gives."""
        given: list[Any] = self._module.run_method(f"__et_training_{what}_{_METHOD}", ())
        return given


class _Step:
    """A training program: which of its outputs are what, and its parameters."""

    def __init__(self, module: _Module, program: Program, slots: Sequence[str]) -> None:
        self._module = module
        self._names: list[str] = module.metadata("fqn")
        self._gradients: int = module.metadata("gradients_index")[0]
        self._parameters: int = module.metadata("parameters_index")[0]
        remembered = (slot_name(slot, name) for slot in slots for name in self._names)
        elsewhere = {*self._names, *remembered, "lr", "number"}  # in the program itself, or with the optimiser
        self._inputs = [name for name in program.inputs if name not in elsewhere]
        new = {f"new.{name}" for name in self._names}
        self._statistics = [n for n in program.outputs if n.startswith("new.tensor.") and n not in new]
        self._held: list[NDArray[np.float32]] = []

    def differentiate(self, inputs: Mapping[str, NDArray[Any]]) -> Gradients:
        given = [inputs[name] for name in self._inputs]
        if not self._held:  # only a run gives them
            self._held = self._module.uncopied(given)[self._parameters :]
        for held, name in zip(self._held, self._names, strict=True):
            held[...] = inputs[name]
        outputs = self._module.uncopied(given)[: self._parameters]
        _, loss, *statistics = outputs[: self._gradients]  # the first is what is minimised
        return Gradients(
            loss.copy(),
            dict(zip(self._names, outputs[self._gradients :], strict=True)),
            {name: array.copy() for name, array in zip(self._statistics, statistics, strict=True)},
        )


class ExecutorchTrainingRuntime(Runtime):
    """A bundle in ExecuTorch, trained in its own way. ``threads`` are the whole process's."""

    name = "executorch_training"
    package = "executorch"

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        with native_stderr_closed():
            _C._unsafe_reset_threadpool(threads)
        torch.set_num_threads(threads)

    def load(self, program: Program) -> Compiled:
        """A module of a ``.pte``."""
        module = _Module(self.bundle.read(program.file), str(self.bundle.root / program.file))
        if program.kind != "step":
            return module
        optimizer = self.bundle.manifest.optimizer
        return step_of(program, optimizer, _Step(module, program, optimizer.slots).differentiate)


RUNTIME = ExecutorchTrainingRuntime
