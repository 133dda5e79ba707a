"""Options of the Python interface that are lists of names."""

from collections.abc import Iterable
from typing import Any

from edge_fl.core.errors import ConfigError

__all__ = ["names_given"]


def names_given(option: str, names: Iterable[str] | None) -> tuple[str, ...]:
    """``names`` as a tuple, none of None; raises ConfigError for one name alone, and for anything that is no name.

    Example: ``names_given("scores", ["accuracy"])``
    """
    if isinstance(names, str):
        raise ConfigError(f"'{option}' takes a list, such as ['{names}'], not '{names}' alone.")
    try:
        given: tuple[Any, ...] = tuple(names or ())
    except TypeError as error:
        raise ConfigError(f"'{option}' takes a list of names, not {names!r}.") from error
    for name in given:
        if not isinstance(name, str):
            own = ": write 'file.py:NAME' of what is in a file of yours" if callable(name) else ""
            raise ConfigError(f"'{option}' takes a list of names, not {name!r}{own}.")
    return given
