"""A limit on how far other people's Python code may search, counted in calls: the same on every machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["CallLimitError", "call_limit"]


class CallLimitError(Exception):
    """The search was broken off."""


@contextmanager
def call_limit(most: int) -> Iterator[None]:
    """Raise CallLimitError once this thread has made and left ``most`` calls, of Python code or of compiled code.

    A profiler that is at work is set again afterwards. Code that catches the error goes on without a limit, and the
    error is raised at its end.
    """
    before, left = sys.getprofile(), most

    def look(_frame: FrameType, _event: str, _arg: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise CallLimitError(f"it took more than {most:,} calls")

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
    if left < 0:
        raise CallLimitError(f"it took more than {most:,} calls")
