"""Pickles of what processes send each other, with large buffers beside the stream in place of copies in it."""

import pickle
from io import BytesIO
from typing import Any

import msgspec

from edge_fl.training.update import Update

__all__ = ["pickled"]

_SMALL = 1 << 12  # bytes of a buffer that the stream may as well have


def pickled(value: object, *, beside: bool = True) -> tuple[bytes, list[memoryview]]:
    """The stream, and the large buffers that ``pickle.loads`` takes with it; none are taken out unless ``beside``.

    Whoever loads it gives ``bytes`` for a read-only buffer, which an update's frame is, and a ``bytearray`` for others.
    """
    stream, buffers = BytesIO(), list[memoryview]()
    _Pickler(stream, buffers, beside=beside).dump(value)
    return stream.getvalue(), buffers


class _Pickler(pickle.Pickler):
    """Gives ``buffers`` what is large."""

    def __init__(self, stream: BytesIO, buffers: list[memoryview], *, beside: bool) -> None:
        super().__init__(stream, protocol=5, buffer_callback=self._take)
        self._buffers, self._beside = buffers, beside

    def reducer_override(self, value: Any) -> Any:
        """Updates, whose bytes are no buffers otherwise, and UNSET, for which pickle searches all modules."""
        if isinstance(value, Update):
            frame, withheld = pickle.PickleBuffer(value.frame), pickle.PickleBuffer(value.withheld)
            return Update, (frame, value.loss, value.state, withheld)
        return (_unset, ()) if value is msgspec.UNSET else NotImplemented

    def _take(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether it stays in the stream."""
        raw = buffer.raw()
        if len(raw) < _SMALL or not self._beside:
            return True
        self._buffers.append(raw)
        return False


def _unset() -> msgspec.UnsetType:
    return msgspec.UNSET
