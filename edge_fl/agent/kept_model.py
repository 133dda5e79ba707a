"""The final model that a device keeps in its state folder, and what it predicts."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_fl.agent.opening import Opener, in_process_of_its_own
from edge_fl.agent.settings import AgentSettings
from edge_fl.core.arrays import unpacked
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import DataError, StateError
from edge_fl.core.server_half import State
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.data.checked import checked_samples
from edge_fl.data.fit import prepared, reads_texts
from edge_fl.wire.frame import decode_frame

__all__ = ["KeptModel", "Predictor", "model_version", "read_model", "write_model"]

_FILE = "model.msgpack"
_Width = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class KeptModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``frame`` of a run's final model, and the SHA-256 of the manifest of its bundle.

    ``width`` says how many of the first units of each block it has, ``statistics`` which BatchNorm statistics suit them
    (both in thousandths). ``personal`` has the device's personal tensors (:func:`edge_fl.core.arrays.packed`).
    """

    run: str
    manifest: str
    width: _Width
    statistics: _Width
    frame: bytes
    personal: bytes = b""

    @property
    def state(self) -> State:
        """The personal tensors, as methods remember them; raises ValueError where they are damaged."""
        return unpacked(self.personal) if self.personal else {}


def write_model(state: Path, model: KeptModel) -> None:
    """Keep ``model`` in the place of any other; raises StateError where it cannot be written."""
    write_atomically(state / _FILE, msgspec.msgpack.encode(model))


def read_model(state: Path) -> KeptModel | None:
    """The model in a state folder, None where it has none; raises StateError where it is damaged."""
    try:
        kept = msgspec.msgpack.decode((state / _FILE).read_bytes(), type=KeptModel)
        _ = kept.state  # whose damage is told here, too
        return kept
    except FileNotFoundError:
        return None
    except (OSError, ValueError, *UNREADABLE) as error:
        raise StateError(f"The model '{state / _FILE}' is damaged ({error}); remove it.") from error


def model_version(state: Path) -> int:
    """Another number whenever another model is kept in a state folder; 0 where there is none."""
    path = state / _FILE
    return path.stat().st_mtime_ns if path.exists() else 0


class Predictor:
    """The model of a state folder, opened to predict; several threads may call it.

    One thread has the programs' process, for the kernel ends that with the thread that started it.

    Parameters
    ----------
    settings
        Those of the device: a device process may be using its state folder.
    open
        Opens the bundle; in a process of its own unless its programs are trusted.

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

    def __init__(self, settings: AgentSettings, *, open: Opener = in_process_of_its_own) -> None:
        kept = read_model(settings.state)
        if kept is None:
            raise StateError(
                f"'{settings.state}' keeps no model: run the device with keep_model until a run ends."
            )
        self.run, self.width = kept.run, kept.width / 1000
        bundle = Bundle.load(settings.state / "bundles" / kept.manifest, runtime=settings.runtime)
        decode_frame(kept.frame, bundle.layout)
        self._bundle, self._statistics = bundle, kept.statistics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predictor")
        try:
            self._work = self._thread.submit(open, bundle, settings).result()
            self._thread.submit(self._work.keep, kept.frame, kept.state).result()
        except BaseException:
            self._thread.shutdown()
            raise

    def __call__(self, x: ArrayLike | Mapping[str, ArrayLike] | Sequence[str]) -> NDArray[np.float32]:
        """The model's outputs ``[N, ...]`` for inputs ``x`` ``[N, ...]``, several by name, or ``N`` texts.

        Raises DataError where they do not fit.
        """
        inputs = self._inputs(x)
        return self._thread.submit(self._work.predict, inputs, width=self._statistics).result()

    def _inputs(self, x: ArrayLike | Mapping[str, ArrayLike] | Sequence[str]) -> NDArray[Any]:
        taken = self._bundle.manifest.input
        if isinstance(x, str):
            raise DataError("Give a list of texts, not one text.")
        if isinstance(x, Mapping):
            return self._prepared({name: np.asarray(each) for name, each in x.items()})
        given: NDArray[Any] = np.asarray(x)
        if given.dtype.kind in "UO" and given.ndim == 1 and len(given):
            texts = checked_samples(list(x), np.zeros(len(given), dtype=np.int64), "The input")  # type: ignore[arg-type]
            reads_texts(self._bundle.manifest)
            return texts.x  # for the programs' process, as the tokenizer is the bundle's, too
        if self._bundle.manifest.inputs:
            named = ", ".join(f"'{each.name}'" for each in self._bundle.manifest.inputs)
            raise DataError(f"The model takes the inputs {named}: give a dict of arrays by these names, or texts.")
        if given.shape[1:] != taken.shape or not given.ndim or not len(given):
            raise DataError(f"The model takes inputs of shape (N, {str(taken.shape)[1:-1]}), not {given.shape}.")
        if not np.can_cast(given.dtype, taken.dtype, "same_kind"):
            raise DataError(f"The model takes inputs of {taken.dtype}, not {given.dtype}.")
        return np.ascontiguousarray(given, taken.dtype)

    def _prepared(self, x: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """What data are made into, without targets."""
        samples = {len(each) if each.ndim else 0 for each in x.values()}
        if len(samples) != 1 or 0 in samples:
            raise DataError("The inputs are not of one number of samples: give arrays (N, ...) each.")
        given = checked_samples(x, np.zeros(samples.pop(), dtype=np.int64), "The input")
        return prepared(given, self._bundle).x

    def close(self) -> None:
        """Nothing more is asked: end what was started."""
        self._thread.submit(self._work.close).result()
        self._thread.shutdown()
