"""What msgspec raises on bytes that are not as they were written."""

from typing import Final, TypeVar

import msgspec

from edge_fl.core.errors import FrameError

__all__ = ["UNREADABLE", "decoded"]

_T = TypeVar("_T")

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Also on text that is not UTF-8, and on what lies in each other without end."""


def decoded(decoder: msgspec.msgpack.Decoder[_T], data: bytes, *, what: str = "message") -> _T:
    """What msgpack says; raises FrameError (``message``) where ``what`` it is cannot be read."""
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise FrameError("message", f"The {what} cannot be read: {error}.") from error
