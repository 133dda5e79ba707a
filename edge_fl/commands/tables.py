"""Tables on standard output, as wide as the terminal, or as they need to be where there is none."""

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["show_table"]

_NO_TERMINAL = 160


def show_table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows below their heads, numbers to the right with their thousands apart; nothing where there are none.

    A column without any text is left out.
    """
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    cells = [[_text(cell) for cell in row] for row in rows]
    if not cells:
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [index for index in range(len(head)) if any(row[index][0] for row in cells)]
    for index in shown:
        right = all(row[index][1] for row in cells)
        table.add_column(head[index], justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(escape(row[index][0]) for index in shown))
    console = Console()
    Console(width=None if console.is_terminal else _NO_TERMINAL).print(table)


def _text(cell: Any) -> tuple[str, bool]:
    """A cell, and whether it is a number."""
    if isinstance(cell, int):
        return f"{cell:,}", True
    if isinstance(cell, float):
        return f"{cell:g}", True
    return str(cell), False
