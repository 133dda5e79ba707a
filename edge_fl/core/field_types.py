"""Fields of settings as their types say, whatever a user of Python gives."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from edge_fl.core.errors import ConfigError, said

__all__ = ["settle_fields"]


def settle_fields(struct: msgspec.Struct, hints: Mapping[str, str] | None = None) -> None:
    """For ``__post_init__``: Python's numbers for NumPy's, in lists, tuples and dicts, too; refuse other types.

    ``hints`` say for a field what to give. Raises ConfigError as far as JSON, in which settings are kept, would find a
    type wrong.
    """
    for name, kind in _types(type(struct)).items():
        given = getattr(struct, name)
        if get_origin(kind) is Literal:
            if given not in get_args(kind):
                raise ConfigError(f"'{name}' cannot be {given!r}: give {' or '.join(get_args(kind))}.")
            continue
        if (settled := _plain(given)) is not given:
            msgspec.structs.force_setattr(struct, name, settled)
        hint = f": give {hints[name]}" if hints and name in hints else ""
        try:
            if hint and isinstance(settled, dict):  # which JSON has for a struct
                raise ConfigError(f"'{name}' cannot be {given!r}{hint}.")
            msgspec.convert(settled, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(f"'{name}' cannot be {given!r} ({said(error)}){hint}.") from error


@cache
def _types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    types = get_type_hints(struct)
    return {name: types[name] for name in struct.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
