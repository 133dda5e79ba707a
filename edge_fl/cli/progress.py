"""Telling on stderr what a long command is doing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """A function that shows its text after ``doing``: in one line that changes on a terminal, else line by line."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"{doing}: {text}", highlight=False, markup=False)
        return
    with console.status(doing) as status:
        yield lambda text: status.update(f"{doing}: {text}")
