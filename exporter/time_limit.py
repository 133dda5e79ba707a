"""A limit on how long other people's Python code may search."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["time_limit"]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError at a call or return of Python code in this thread, once so many ``seconds`` are over.

    A single call of compiled code is not broken off. A profiler that is at work is set again afterwards.
    """
    before, until = sys.getprofile(), time.monotonic() + seconds

    def look(_frame: FrameType, _event: str, _arg: object) -> None:
        if time.monotonic() > until:
            raise TimeoutError(f"it took longer than {seconds:g} s")

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
