"""Numbers of NumPy, as sweeps over its arrays give them, where a record holds Python's."""

from typing import Any

import msgspec
import numpy as np

__all__ = ["settle_numbers"]


def settle_numbers(struct: msgspec.Struct) -> None:
    """Have every field hold Python's numbers for NumPy's, in lists, tuples and dicts, too: for ``__post_init__``."""
    for name in struct.__struct_fields__:
        given = getattr(struct, name)
        if (settled := _plain(given)) is not given:
            msgspec.structs.force_setattr(struct, name, settled)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
