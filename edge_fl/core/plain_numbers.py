"""Numbers of NumPy, as sweeps over its arrays give them, where a record holds Python's."""

from typing import Any

import numpy as np

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """The same with numbers of Python's for NumPy's, in lists, tuples and dicts, too."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
