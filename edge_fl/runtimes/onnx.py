"""Plain onnxruntime: no torch, one program for every width and batch."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else importing it begins to report to its maker

import onnxruntime

from edge_fl.core.bundle import Bundle, Program
from edge_fl.core.errors import BundleError
from edge_fl.runtimes._external_data import refuse_external_data
from edge_fl.runtimes.base import Compiled, Runtime

__all__ = ["RUNTIME", "OnnxRuntime", "open_session", "session_options"]


class OnnxRuntime(Runtime):
    """A bundle in onnxruntime."""

    name = "onnx"
    package = "onnxruntime"

    def load(self, program: Program) -> Compiled:
        """An inference session."""
        session = open_session(self.bundle, program, threads=self.threads)

        def run(inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
            outputs: list[NDArray[np.float32]] = session.run(None, dict(zip(program.inputs, inputs, strict=True)))
            return outputs

        return run


def open_session(bundle: Bundle, program: Program, *, threads: int) -> onnxruntime.InferenceSession:
    """A session of one program on ``threads`` CPU threads.

    Raises BundleError where the program names other files, or onnxruntime cannot take it.
    """
    content, where = bundle.read(program.file), f"'{bundle.root / program.file}'"
    refuse_external_data(content, where)
    # Each use of a narrow weight widens it anew; else a wide copy would live from forward to backward.
    narrow = any(tensor.dtype in ("float16", "int8") for tensor in bundle.layout.frozen)
    shared = ["CommonSubexpressionElimination"] if narrow else []
    try:
        return onnxruntime.InferenceSession(
            content, session_options(threads), providers=["CPUExecutionProvider"], disabled_optimizers=shared
        )
    except Exception as error:  # onnxruntime has no common base for what it raises on programs it cannot take
        raise BundleError(f"onnxruntime {onnxruntime.__version__} cannot load {where}: {error}.") from error


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """What all sessions have in common, for ``threads`` CPU threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin between the steps would eat a phone's battery, and other devices' time on one machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A planned block lies beside what the first step took, and a reused buffer is held from its first use to its last:
    # a train step without both is as fast, in half of the memory.
    options.enable_mem_pattern = False
    options.enable_mem_reuse = False
    return options


RUNTIME = OnnxRuntime
