"""onnxruntime's gradient graph of an ONNX model, built by the interpreter of onnxruntime-training's environment.

That interpreter runs this file, so nothing is imported here but the standard library and, there, onnxruntime.
"""

import json
import subprocess
import sys
from collections.abc import Sequence

from edge_fl.core.errors import RuntimeMissingError, UnsupportedModelError

__all__ = ["gradient_graph"]

_REFUSED = 3


def gradient_graph(python: str, model: bytes, minimised: str, parameters: Sequence[str]) -> bytes:
    """Give the model an output ``NAME_grad``, the gradient of its output ``minimised``, for each of ``parameters``.

    Parameters
    ----------
    python
        The interpreter of an environment with onnxruntime-training.
    model
        An ONNX model; ``parameters`` are inputs of it.

    Raises
    ------
    UnsupportedModelError
        When onnxruntime cannot differentiate an operation of the model.
    RuntimeMissingError
        When ``python`` has no onnxruntime-training.
    """
    command = [python, "-m", "exporter.gradient_graph"]
    given = json.dumps([minimised, *parameters]).encode() + b"\n" + model
    try:
        done = subprocess.run(command, input=given, capture_output=True, check=False)
    except OSError as error:
        raise RuntimeMissingError(f"There is no Python at '{python}': {error.strerror}.") from error
    if done.returncode == _REFUSED:
        reason = done.stdout.decode().strip()
        raise UnsupportedModelError(f"onnxruntime cannot differentiate an operation of the model: {reason}.")
    if done.returncode != 0:
        last = done.stderr.decode().strip().rpartition("\n")[2]
        raise RuntimeMissingError(f"'{python}' cannot build gradients with onnxruntime-training: {last}.")
    return done.stdout


def _build() -> int:
    from onnxruntime.capi.onnxruntime_pybind11_state import GradientGraphBuilder, SessionOptions

    header, _, model = sys.stdin.buffer.read().partition(b"\n")
    minimised, *parameters = json.loads(header)
    builder = GradientGraphBuilder(model, {minimised}, set(parameters), minimised, SessionOptions())
    try:
        builder.build()
    except RuntimeError as error:
        # "FILE:LINE SIGNATURE CONDITION was false. REASON", and there is not always a reason
        found, _, reason = str(error).strip().rpartition(" was false.")
        sys.stdout.write(reason.strip().rstrip(".") or f"'{found.rpartition(') ')[2]}' does not hold of it")
        return _REFUSED
    sys.stdout.buffer.write(builder.get_model())
    return 0


if __name__ == "__main__":
    sys.exit(_build())
