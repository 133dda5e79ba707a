"""The proof that a delivered file computes what the trained model computes."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle, Program
from edge_fl.core.errors import ParityError, RuntimeMissingError
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Weights, masked
from edge_fl.data.inputs_by_name import inputs_of
from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Compiled, Runtime, open_runtime
from exporter.accept import Fit, example_inputs
from exporter.extract.formats import Format
from exporter.limits import LIMIT, SMALLEST

__all__ = ["SAMPLES", "check_file", "expected_outputs", "random_inputs", "taken_inputs"]

SAMPLES = 7
"""Random inputs that a file is tried on."""
_PREFERRED = ("onnx", "torch_eager", "executorch")


def random_inputs(bundle: Bundle) -> NDArray[Any]:
    """``[SAMPLES, *input]``, the same every time."""
    manifest = bundle.manifest
    x: NDArray[Any] = example_inputs(Fit(manifest.input, (), manifest.classes, manifest.inputs), SAMPLES).numpy()
    return x


def taken_inputs(bundle: Bundle, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The packed ``x`` as the delivered file takes it: inputs by name, or ``x`` itself."""
    named = inputs_of(Samples(x, np.zeros(len(x), dtype=np.int64), inputs=bundle.manifest.inputs))
    dtypes = {each.name: each.dtype for each in bundle.manifest.inputs}
    return {name: np.ascontiguousarray(array, dtypes[name]) for name, array in named.items()} or {"x": x}


def expected_outputs(
    bundle: Bundle, pattern: Pattern, weights: Weights, x: NDArray[Any], *, width: int
) -> NDArray[np.float32]:
    """What the bundle's evaluation program, proven at export, gives with the rows of dropped units at zero.

    BatchNorm has the statistics of ``width`` (thousandths).

    It runs on the full model and knows nothing of the forward program, of narrowing or of the format.

    Raises RuntimeMissingError when none of the bundle's runtimes is installed.
    """
    target = bundle.manifest.target
    y = np.zeros((len(x), *target.shape), dtype=target.dtype)
    opened = _opened(bundle)
    batch = Batch(opened.features(x), y, np.ones(len(x), dtype=np.float32))
    _, outputs = opened.evaluator()(masked(weights, pattern), batch, width=width)
    return outputs


def check_file(
    bundle: Bundle, data: bytes, kind: Format, given: Mapping[str, NDArray[Any]], expected: NDArray[np.float32]
) -> float:
    """Run a delivered file on its inputs ``given``, as many samples at a time as it takes.

    Returns
    -------
    The largest difference of any output from ``expected``, over the largest of those.

    Raises
    ------
    ParityError
        When it exceeds :data:`exporter.limits.LIMIT`.
    """
    samples = len(expected)
    size = kind.batch or samples
    with tempfile.TemporaryDirectory() as scratch:
        run = _loaded(bundle, Path(scratch), data, kind, tuple(given))
        starts = range(0, samples, size)
        pieces = [run([each[start : start + size] for each in given.values()]) for start in starts]
    off = min(_off(np.array(pieces), each) for each in _orders(bundle, expected))
    if not off <= LIMIT:  # NaN is no difference that is small
        raise ParityError(
            f"The extracted model does not compute what the trained one computes: an output is off by {off:.2g} of "
            f"the largest (limit {LIMIT:g}), so nothing was written."
        )
    return off


def _off(outputs: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    # torch's program gives its one output bare, which its runtime takes for a sequence of outputs.
    difference = np.max(np.abs(outputs.reshape(expected.shape) - expected))
    return float(difference) / max(SMALLEST, float(np.max(np.abs(expected))))


def _orders(bundle: Bundle, expected: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """As evaluation has them, with classes last; where samples have several targets, with classes first, too."""
    target = bundle.manifest.target
    several = target.dtype == "int64" and target.shape
    return [expected, np.moveaxis(expected, -1, 1)] if several else [expected]


def _loaded(bundle: Bundle, folder: Path, data: bytes, kind: Format, inputs: tuple[str, ...]) -> Compiled:
    """The file in the runtime that devices train in, as the only program of a bundle."""
    program = Program(f"model{kind.suffix}", "eval", inputs, ("outputs",), batch=kind.batch)
    (folder / program.file).write_bytes(data)
    alone = Bundle(folder, msgspec.structs.replace(bundle.manifest, programs={kind.runtime: (program,)}))
    return open_runtime(kind.runtime, alone).load(program)


def _opened(bundle: Bundle) -> Runtime:
    reasons = []
    for name in _PREFERRED:
        try:
            return open_runtime(name, bundle)
        except RuntimeMissingError as error:
            reasons.append(str(error))
    raise RuntimeMissingError("The extracted model cannot be compared with the bundle's: " + " ".join(reasons))
