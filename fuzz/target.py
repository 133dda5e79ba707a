"""What is fuzzed: a name, how many cases it is due, and a function that makes it ready in a process of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar

__all__ = ["Draws", "Exhausted", "Prepared", "Target"]

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Prepared:
    """A target that is ready: ``run`` takes one case, and raises where it finds a fault; ``seeds`` are cases to begin
    with.
    """

    run: Callable[[bytes], None]
    seeds: Sequence[bytes]


@dataclass(frozen=True)
class Target:
    """One target.

    Parameters
    ----------
    name
        As a person says it.
    place
        ``module:function`` of what makes it ready, and after another colon the function's argument, if it has one.
    cases
        How many a full campaign tries.
    longest
        Bytes of a case.
    megabytes
        That it may allocate beyond what it has when it is ready.
    """

    name: str
    place: str
    cases: int
    longest: int = 4096
    megabytes: int = 256

    def prepare(self) -> Prepared:
        """Import what is fuzzed, and make it ready."""
        module, function, *argument = self.place.split(":")
        prepared: Prepared = getattr(import_module(module), function)(*argument)
        return prepared


class Exhausted(BaseException):
    """A case has no byte left to decide by."""


class Draws:
    """Decisions out of the bytes of a case, first to last."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def byte(self) -> int:
        """The next byte; raises Exhausted where there is none."""
        if self._at >= len(self._data):
            raise Exhausted
        self._at += 1
        return self._data[self._at - 1]

    def pick(self, items: Sequence[_Item]) -> _Item:
        """One of at most 256 ``items``."""
        return items[self.byte() % len(items)]

    def bytes(self) -> bytes:
        """Up to 63 of those that follow, as the next one says."""
        length = self.byte() % 64
        start, self._at = self._at, self._at + length
        return self._data[start : self._at]

    def number(self) -> int:
        """An integer that lies on a border more often than not."""
        small = self.byte()
        borders = (0, 1, 2, 3, 4, 5, 63, 64, 999, 1000, 2**20, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1)
        return borders[small] if small < len(borders) else small
