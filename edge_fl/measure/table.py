"""The results of a benchmark as a Markdown table, as JSON, and as a page of the documentation."""

import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_fl.measure.bars import Bars

__all__ = ["Picture", "Result", "Row", "arranged"]

_OPEN_COLUMNS = 7  # a page shows as many without scrolling sideways
_FOUND_BEGIN = "<!-- found: by hand, kept when the page is written again: compare with the table -->"
_FOUND_END = "<!-- /found -->"
_FOUND = re.compile(f"{re.escape(_FOUND_BEGIN)}(.*?){re.escape(_FOUND_END)}", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_LOOKS_LIKE_LINK = re.compile(r"\]\((?![\w./-]+\.md(#[\w-]+)?\))")  # in what a compiler prints
_ESCAPED = r"]\\("

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

    ``notes`` are sentences for below the table; ``bars`` and ``pictures`` are drawn beside a page.
    """

    title: str
    command: str
    about: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    bars: Bars | None = None

    def markdown(self, found: str = "", links: Sequence[str] = ()) -> str:
        """A page: pictures, what they show, the command and the machine; how it was measured, and a wide table, folded.

        ``found`` is three sentences by somebody who has read the table, else the first three of ``about``.
        """
        columns = list(self.rows[0])
        table = [
            "| " + " | ".join(columns) + " |",
            "| " + " | ".join("---" for _ in columns) + " |",
            *("| " + " | ".join(_text(row[column]) for column in columns) + " |" for row in self.rows),
        ]
        sentences = _SENTENCE.split(self.about)
        machine = f"{os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}"
        return arranged(
            self.title,
            links=links,
            found=found or " ".join(sentences[:3]),
            command=f"`{self.command}`, {machine}.",
            about=self.about if found else " ".join(sentences[3:]),
            table=table,
            notes=[f"{n}. {_LOOKS_LIKE_LINK.sub(_ESCAPED, note)}" for n, note in enumerate(self.notes, start=1)],
        )

    def json(self) -> str:
        """The rows, unrounded."""
        return json.dumps(
            {"title": self.title, "command": self.command, "rows": list(self.rows), "notes": self.notes}
        )

    def write(self, path: Path) -> None:
        """Put the page at ``path``, its pictures beside it; what was found there, in somebody's words, is kept."""
        path.parent.mkdir(parents=True, exist_ok=True)
        links = []
        if self.bars is not None and (drawn := self.bars.svg(self.rows)):
            path.with_name(f"{path.stem}-bars.svg").write_text(drawn)
            links.append(f"![{self.bars.caption}]({path.stem}-bars.svg)")
        for picture in self.pictures:
            picture.draw(picture.beside(path))
            links.append(f"![{picture.caption}]({picture.beside(path).name})")
        earlier = _FOUND.search(path.read_text()) if path.exists() else None
        path.write_text(self.markdown(earlier[1].strip() if earlier else "", links))


def arranged(
    title: str,
    *,
    links: Sequence[str],
    found: str,
    command: str,
    about: str,
    table: Sequence[str],
    notes: Sequence[str],
) -> str:
    """The parts of a page in the order in which somebody reads them; a table of many columns is folded away."""
    columns = table[0].count(" | ") + 1
    folded = columns > _OPEN_COLUMNS
    shown = "\n\n".join(filter(None, ["\n".join(table), "\n".join(notes)]))
    parts = [
        f"# {title}",
        *links,
        f"{_FOUND_BEGIN}\n{found}\n{_FOUND_END}",
        command,
        _fold("How this was measured", about) if about else "",
        _fold(f"The table: {len(table) - 2} rows, {columns} columns", shown) if folded else shown,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _fold(summary: str, content: str) -> str:
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{content}\n\n</details>'


def _text(value: str | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
