"""The results of a benchmark as a Markdown table, as JSON, and as a page of the documentation."""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Picture", "Result", "Row"]

Row = Mapping[str, str | float]
"""One line of a table, by column."""


@dataclass(frozen=True)
class Picture:
    """A plot beside a page: the end of its file's name, what it shows, and what draws it as PNG at a path."""

    name: str
    caption: str
    draw: Callable[[Path], None]

    def beside(self, page: Path) -> Path:
        """Where the picture of ``page`` is."""
        return page.with_name(f"{page.stem}-{self.name}.png")


@dataclass(frozen=True)
class Result:
    """One benchmark's outcome: what it is, the command that gives it, and rows of the same columns.

    ``notes`` are sentences for below the table, ``pictures`` are drawn beside a page.
    """

    title: str
    command: str
    about: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()

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
        """Put the page at ``path``, its pictures beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        links = []
        for picture in self.pictures:
            picture.draw(picture.beside(path))
            links.append(f"\n![{picture.caption}]({picture.beside(path).name})\n")
        path.write_text(self.markdown() + "".join(links))


def _text(value: str | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
