"""onnxruntime-training: gradients by onnxruntime's own gradient operators, one program for every width and batch.

Its package owns the same files as onnxruntime, so it lives in an environment of its own. A device runs there; where
another runtime's environment opens a bundle (the exporter, to prove it), the steps are run by the interpreter that
``EDGE_FL_ORT_TRAINING_PYTHON`` names.
"""

import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle, Program
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.runtimes._gradients import Gradients, step_of
from edge_fl.runtimes._remote import RemoteRuntime
from edge_fl.runtimes.base import Compiled, Runtime

__all__ = ["PYTHON", "RUNTIME", "OrtTrainingRuntime", "training_python"]

PYTHON = "EDGE_FL_ORT_TRAINING_PYTHON"
"""The environment variable that names the interpreter of onnxruntime-training's environment."""


class OrtTrainingRuntime(Runtime):
    """A bundle in onnxruntime-training.

    Raises RuntimeMissingError when it is neither installed here nor is :data:`PYTHON` set.
    """

    name = "ort_training"
    package = "onnxruntime-training-cpu"

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        self._remote: RemoteRuntime | None = None
        if not _installed_here():
            self._remote = RemoteRuntime(training_python(), self.name, bundle, threads=threads)

    @classmethod
    def installed(cls) -> str:
        """Its version, or the interpreter that has it."""
        return super().installed() if _installed_here() else f"{cls.package}, run by {training_python()}"

    def load(self, program: Program) -> Compiled:
        """An inference session; that of a step gives the loss, new statistics and ``tensor.NAME_grad``."""
        if self._remote is not None:
            return self._remote.load(program)
        from edge_fl.runtimes.onnx import open_session

        session = open_session(self.bundle, program, threads=self.threads)
        if program.kind != "step":
            return lambda inputs: list(session.run(None, dict(zip(program.inputs, inputs, strict=True))))
        wanted = [value.name for value in session.get_inputs()]
        given = [value.name for value in session.get_outputs()]

        def differentiate(inputs: Mapping[str, NDArray[Any]]) -> Gradients:
            found = dict(zip(given, session.run(given, {name: inputs[name] for name in wanted}), strict=True))
            return Gradients(
                found["loss"],
                {name.removesuffix("_grad"): array for name, array in found.items() if name.endswith("_grad")},
                {name: array for name, array in found.items() if name.startswith("new.")},
            )

        return step_of(program, self.bundle.manifest.optimizer, differentiate)


def training_python() -> str:
    """The interpreter that :data:`PYTHON` names; raises RuntimeMissingError when it names none."""
    python = os.environ.get(PYTHON)
    if not python:
        raise RuntimeMissingError(
            "onnxruntime-training cannot be installed beside onnxruntime: install edge-fl[ort-training] in an "
            f"environment of its own, and name that environment's Python in {PYTHON}."
        )
    return python


def _installed_here() -> bool:
    try:
        # The class that only a training build has.
        from onnxruntime.capi.onnxruntime_pybind11_state import GradientGraphBuilder  # noqa: F401
    except ImportError:
        return False
    return True


RUNTIME = OrtTrainingRuntime
