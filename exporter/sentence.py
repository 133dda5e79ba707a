"""Parts of a sentence: other people's errors in one line, and names of which there may be many."""

from collections.abc import Sequence

__all__ = ["first_line", "some_names"]


def first_line(error: Exception) -> str:
    """The type and the first line of what an error says, without a full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def some_names(names: Sequence[str], *, most: int) -> str:
    """The first names, each in quotes, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more
