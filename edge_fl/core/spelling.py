"""What somebody meant who wrote a name that there is none of."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["meant"]


def meant(name: str, known: Iterable[str]) -> str:
    """A question that names the nearest of ``known``, behind a space; nothing where none is near."""
    near = get_close_matches(name, list(known), 1)
    return f" Did you mean '{near[0]}'?" if near else ""
