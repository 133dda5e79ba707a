"""The final model that a device keeps in its state folder, and what it predicts."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import DataError, StateError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.data.batcher import eval_batches
from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.training.evaluation import BATCH
from edge_fl.wire.frame import decode_frame

__all__ = ["KeptModel", "Predictor", "model_version", "read_model", "write_model"]

_FILE = "model.msgpack"
_Width = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class KeptModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``frame`` of a run's final model, and the SHA-256 of the manifest of its bundle.

    ``width`` says how many of the first units of each block it has, ``statistics`` which BatchNorm statistics suit them
    (both in thousandths).
    """

    run: str
    manifest: str
    width: _Width
    statistics: _Width
    frame: bytes


def write_model(state: Path, model: KeptModel) -> None:
    """Keep ``model`` in the place of any other; raises StateError where it cannot be written."""
    write_atomically(state / _FILE, msgspec.msgpack.encode(model))


def read_model(state: Path) -> KeptModel | None:
    """The model in a state folder, None where it has none; raises StateError where it is damaged."""
    try:
        return msgspec.msgpack.decode((state / _FILE).read_bytes(), type=KeptModel)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        raise StateError(f"The model '{state / _FILE}' is damaged ({error}); remove it.") from error


def model_version(state: Path) -> int:
    """Another number whenever another model is kept in a state folder; 0 where there is none."""
    path = state / _FILE
    return path.stat().st_mtime_ns if path.exists() else 0


class Predictor:
    """The model of a state folder, opened in a runtime.

    Parameters
    ----------
    state
        A device's state folder, which a device process may be using.
    runtime
        That of the device: the folder holds its programs.
    threads
        CPU threads.

    Attributes
    ----------
    run
        The run that gave the model.
    width
        The share of the units that it has.

    Raises
    ------
    StateError
        When the folder keeps no model, or a damaged one.
    BundleError, FrameError, RuntimeMissingError
        When its programs are damaged, do not fit it, or cannot be run here.
    """

    def __init__(self, state: Path, runtime: str, *, threads: int = 1) -> None:
        kept = read_model(state)
        if kept is None:
            raise StateError(f"'{state}' keeps no model: run the device with keep_model until a run ends.")
        self.run, self.width = kept.run, kept.width / 1000
        bundle = Bundle.load(state / "bundles" / kept.manifest, runtime=runtime)
        frame = decode_frame(kept.frame, bundle.layout)
        self._weights = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in bundle.layout.tensors}
        frame.selection.scatter(frame.values, self._weights)
        self._manifest, self._statistics = bundle.manifest, kept.statistics
        self._runtime: Runtime = open_runtime(runtime, bundle, threads=threads)

    def __call__(self, x: ArrayLike) -> NDArray[np.float32]:
        """The model's outputs ``[N, ...]`` for inputs ``x`` ``[N, ...]``; raises DataError where they do not fit."""
        taken, target = self._manifest.input, self._manifest.target
        given: NDArray[Any] = np.asarray(x)
        if given.shape[1:] != taken.shape or not given.ndim or not len(given):
            raise DataError(f"The model takes inputs of shape (N, {str(taken.shape)[1:-1]}), not {given.shape}.")
        if not np.can_cast(given.dtype, taken.dtype, "same_kind"):
            raise DataError(f"The model takes inputs of {taken.dtype}, not {given.dtype}.")
        samples = Samples(given.astype(taken.dtype), np.zeros((len(given), *target.shape), target.dtype))
        run = self._runtime.evaluator()
        outputs = [
            run(self._weights, batch, width=self._statistics)[1][batch.weight > 0]
            for batch in eval_batches(samples, size=run.batch or min(BATCH, len(given)))
        ]
        self._runtime.settle()
        return np.concatenate(outputs)
