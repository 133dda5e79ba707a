"""Plain onnxruntime: no torch, one program for every width and batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge_fl.bundle import Bundle
from edge_fl.errors import BundleError
from edge_fl.runtimes.base import Batch, EvalProgram, Runtime, TrainStep, eval_program, step_program
from edge_fl.selection import Weights

__all__ = ["RUNTIME", "OnnxRuntime"]


class _Session:
    """An inference session that takes tensors by the layout's names."""

    def __init__(self, bundle: Bundle, file: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that spin between the steps would eat a phone's battery, and other devices' time on one machine.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                bundle.read(file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has no common base for what it raises on programs it cannot take
            where = f"'{bundle.root / file}'"
            raise BundleError(f"onnxruntime {onnxruntime.__version__} cannot load {where}: {error}.") from error
        self._names = [(tensor.name, f"param.{tensor.name}") for tensor in bundle.layout.tensors]

    def run(self, weights: Weights, batch: Batch, scalars: dict[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        feed: dict[str, NDArray[Any]] = {name: weights[tensor] for tensor, name in self._names}
        feed.update(x=batch.x, y=batch.y, sample_weight=batch.weight, **scalars)
        outputs: list[NDArray[np.float32]] = self._session.run(None, feed)
        return outputs


class _Step(TrainStep):
    def __init__(self, session: _Session, tensors: list[str]) -> None:
        self._session = session
        self._tensors = tensors

    def __call__(
        self, weights: Weights, batch: Batch, *, lr: float, scale: float
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        scalars = {"lr": np.array(lr, np.float32), "scale": np.array(scale, np.float32)}
        loss, *new = self._session.run(weights, batch, scalars)
        return float(loss), dict(zip(self._tensors, new, strict=True))


class _Evaluation(EvalProgram):
    def __init__(self, session: _Session) -> None:
        self._session = session

    def __call__(self, weights: Weights, batch: Batch) -> tuple[float, NDArray[np.float32]]:
        loss, outputs = self._session.run(weights, batch, {})
        return float(loss), outputs


class OnnxRuntime(Runtime):
    """A bundle in onnxruntime; a session is made once a program and kept."""

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        super().__init__(bundle, threads=threads)
        self._sessions: dict[str, _Session] = {}

    def train_step(self, counts: Mapping[str, int], batch: int, variant: str = "plain") -> TrainStep:
        """The one program, which takes any counts and batch."""
        program = step_program(self.bundle, "onnx", variant, counts, batch)
        return _Step(self._session(program.file), [tensor.name for tensor in self.bundle.layout.tensors])

    def evaluator(self) -> EvalProgram:
        """The full model's evaluation program."""
        return _Evaluation(self._session(eval_program(self.bundle, "onnx").file))

    def _session(self, file: str) -> _Session:
        if file not in self._sessions:
            self._sessions[file] = _Session(self.bundle, file, self.threads)
        return self._sessions[file]


RUNTIME = OnnxRuntime
