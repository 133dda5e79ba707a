"""Errors that name options of the command line, in the words of Python: ``tiers=2`` for ``--tiers 2``."""

import inspect
import re
from collections.abc import Callable, Collection
from functools import wraps
from typing import ParamSpec, TypeVar

from edge_fl.core.errors import EdgeFLError

__all__ = ["in_python", "speaks_python"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_OPTION = re.compile(r"--(no-)?([a-z][a-z-]*[a-z])(?: (\d[\d.]*\d|\d))?")


def speaks_python(*more: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """For a function of the Python interface: its errors name its parameters, and ``more``, as Python does."""

    def speaking(function: Callable[_P, _R]) -> Callable[_P, _R]:
        names = frozenset((*inspect.signature(function).parameters, *more))

        @wraps(function)
        def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
            try:
                return function(*arguments, **options)
            except EdgeFLError as error:
                error.args = (in_python(str(error), names), *error.args[1:])
                raise

        return call

    return speaking


def in_python(sentence: str, names: Collection[str]) -> str:
    """The sentence, with parameters for those options that are one of ``names``, or several of it."""

    def named(option: re.Match[str]) -> str:
        no, words, number = option.groups()
        name = words.replace("-", "_")
        found = next((each for each in (name, f"{name}s") if each in names), None)
        if found is None:
            return option[0]
        if no:
            return f"{found}=False" + (f" {number}" if number else "")
        return f"{found}={number}" if number else found

    return _OPTION.sub(named, sentence)
