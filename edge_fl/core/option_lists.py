"""Options of the Python interface that are lists of names."""

from collections.abc import Sequence

from edge_fl.core.errors import ConfigError

__all__ = ["names_given"]


def names_given(option: str, names: Sequence[str]) -> tuple[str, ...]:
    """``names`` as a tuple; raises ConfigError for one name alone, and for anything that is no name.

    Example: ``names_given("scores", ["accuracy"])``
    """
    if isinstance(names, str):
        raise ConfigError(f"'{option}' takes a list, such as ['{names}'], not '{names}' alone.")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"'{option}' takes names, such as 'file.py:NAME' of what is in a file of yours, not {name!r}."
            )
    return tuple(names)
