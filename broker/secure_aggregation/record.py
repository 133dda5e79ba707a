"""What must outlive a coordinator that is killed while a round is summed: attempts, and whom it was about to unmask.

Devices unmask one sum a round. So a coordinator that comes back has to ask for the very sums that the one before asked
for, and an attempt that it begins has to be a later one.
"""

from pathlib import Path

import msgspec
import numpy as np

from broker.secure_aggregation.totals import CohortSum
from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import FrameError, StateError
from edge_fl.core.layout import Layout
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.secure_aggregation.masking import Ring
from edge_fl.secure_aggregation.roster import decode_roster, encode_roster

__all__ = ["AggregationRecord"]


class _Masked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cohort's masked sum: its roster, who shared, who survived, and the sum's tensors in the layout's order."""

    roster: bytes
    sharing: tuple[str, ...]
    survivors: tuple[str, ...]
    total: tuple[bytes, ...]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attempt: int = 0
    masked: tuple[_Masked, ...] = ()


class AggregationRecord:
    """A file beside the updates of one round, gone with them.

    Parameters
    ----------
    path
        The file.
    layout
        The model's.

    Attributes
    ----------
    attempt
        The last attempt that was begun, 0 before the first.

    Raises
    ------
    StateError
        When it cannot be read; so it is when it cannot be written.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path, self._layout = path, layout
        try:
            self._held = msgspec.msgpack.decode(path.read_bytes(), type=_Record) if path.exists() else _Record()
        except (OSError, *UNREADABLE) as error:
            raise StateError(
                f"'{path}' cannot be read ({error}): the round's sum was about to be unmasked, and no other may be."
            ) from error

    @property
    def attempt(self) -> int:
        """The last attempt that was begun, 0 before the first."""
        return self._held.attempt

    def begin(self, attempt: int) -> None:
        """Note an attempt before any device hears of it."""
        self._write(msgspec.structs.replace(self._held, attempt=attempt))

    def keep(self, sums: list[CohortSum]) -> None:
        """Note masked sums before any device is asked to unmask them."""
        masked = tuple(
            _Masked(
                encode_roster(one.cohort.roster),
                one.sharing,
                one.survivors,
                tuple(one.total[tensor.name].astype("<u4").tobytes() for tensor in self._layout.tensors),
            )
            for one in sums
        )
        self._write(msgspec.structs.replace(self._held, masked=(*self._held.masked, *masked)))

    def masked(self) -> list[CohortSum]:
        """The masked sums that were noted; StateError where they are damaged."""
        try:
            return [
                CohortSum(
                    decode_roster(one.roster, self._layout), one.sharing, one.survivors, self._total(one.total)
                )
                for one in self._held.masked
            ]
        except (FrameError, ValueError) as error:
            raise StateError(f"'{self._path}' is damaged ({error}): the round cannot be finished.") from error

    def _total(self, parts: tuple[bytes, ...]) -> Ring:
        return {
            tensor.name: np.frombuffer(part, dtype="<u4").astype(np.uint32).reshape(tensor.shape)
            for tensor, part in zip(self._layout.tensors, parts, strict=True)
        }

    def _write(self, record: _Record) -> None:
        self._path.parent.mkdir(exist_ok=True)
        write_atomically(self._path, msgspec.msgpack.encode(record))
        self._held = record
