"""Parameters by name, as people and tasks give them, made into a struct: or one sentence."""

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.core.spelling import meant

__all__ = ["opened"]

_T = TypeVar("_T", bound=msgspec.Struct)
_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def opened(kind: type[_T], given: Mapping[str, Any], of: str) -> _T:
    """A ``kind`` of what is ``given``, where numbers may be text; ``of`` is what takes them, as in "the method 'afd'".

    Raises
    ------
    ConfigError
        When there is no such parameter, or it takes no such value, or ``kind`` refuses them.
    """
    types = _types(kind)
    values = {}
    for name, value in given.items():
        if name not in types:
            taken = ", ".join(types) or "no parameters"
            raise ConfigError(f"The {of} takes {taken}, and no '{name}'.{meant(name, types)}")
        listed = [value] if get_origin(types[name]) is tuple and isinstance(value, str) else value
        try:
            values[name] = msgspec.convert(listed, types[name], strict=False)
        except msgspec.ValidationError as error:
            shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
            raise ConfigError(f"'{name}' of the {of} is {_described(types[name])}, not '{shown}'.") from error
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The {of} cannot be run with what it was given: {error}.") from error


@cache  # a simulation opens a recipe for every client
def _types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"{_described(get_args(kind)[0])}, or several with commas"
    if get_origin(kind) in (Union, UnionType, Annotated):  # of something and None, or what is told about it
        return _described(get_args(kind)[0])
    return _KINDS.get(kind, "of another kind")
