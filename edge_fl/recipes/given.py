"""A recipe's parameters read back out of a record, as a person gives them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from edge_fl.compressors.base import COMPRESSORS
from edge_fl.core.errors import ConfigError
from edge_fl.core.share import in_shares
from edge_fl.methods.base import METHODS
from edge_fl.recipes.recipe import parts_of

__all__ = ["Given", "as_given"]


class Given(NamedTuple):
    """A parameter's ``value``, with shares such as 0.5, and whether it is the default."""

    value: Any
    is_default: bool


def as_given(name: str, parameters: Mapping[str, Any]) -> dict[str, Given]:
    """The parameters of the recipe ``name``, in their order.

    What this process cannot read is as the record has it: parameters of a method or compressor that is not there, and
    values of another version's types.
    """
    found: dict[str, Given] = {}
    try:
        method, compressor, own = parts_of(name, parameters)
        found = _read(METHODS.find(method).Parameters, own.method)
        if compressor:
            theirs = _read(COMPRESSORS.find(compressor).Parameters, own.compressor)
            found |= {f"{compressor}.{key}": value for key, value in theirs.items()}
    except ConfigError:
        pass
    return {key: found.get(key, Given(value, is_default=False)) for key, value in parameters.items()}


def _read(kind: type[msgspec.Struct], own: Mapping[str, Any]) -> dict[str, Given]:
    fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name in own}
    return {name: _of(field, own[name]) for name, field in fields.items() if _fits(field, own[name])}


def _fits(field: msgspec.structs.FieldInfo, value: object) -> bool:
    try:
        msgspec.convert(value, field.type)
    except msgspec.ValidationError:
        return False
    return True


def _of(field: msgspec.structs.FieldInfo, value: Any) -> Given:
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    is_default = default is not msgspec.NODEFAULT and msgspec.json.encode(default) == msgspec.json.encode(value)
    return Given(in_shares(field.type, value), is_default)
