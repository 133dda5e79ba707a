"""The results of a benchmark as a Markdown table, as JSON, and as a page of the documentation."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Result", "Row"]

Row = Mapping[str, str | float]
"""One line of a table, by column."""


@dataclass(frozen=True)
class Result:
    """One benchmark's outcome: what it is, the command that gives it, and rows of the same columns.

    ``notes`` are sentences for below the table.
    """

    title: str
    command: str
    about: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """A page with the table, the command and the machine."""
        columns = list(self.rows[0])
        lines = [
            f"# {self.title}",
            "",
            self.about,
            "",
            f"`{self.command}`, {os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}.",
            "",
            "| " + " | ".join(columns) + " |",
            "| " + " | ".join("---" for _ in columns) + " |",
            *("| " + " | ".join(_text(row[column]) for column in columns) + " |" for row in self.rows),
            *(["", *(f"{n}. {note}" for n, note in enumerate(self.notes, start=1))] if self.notes else []),
            "",
        ]
        return "\n".join(lines)

    def json(self) -> str:
        """The rows, unrounded."""
        return json.dumps(
            {"title": self.title, "command": self.command, "rows": list(self.rows), "notes": self.notes}
        )

    def write(self, path: Path) -> None:
        """Put the page at ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.markdown())


def _text(value: str | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
