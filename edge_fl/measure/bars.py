"""Rows of a table as bars, in plain SVG: the picture of a page that draws nothing else."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Bars"]

_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*\.?[0-9]*(?:e[-+]?[0-9]+)?")
_COLOURS = ("#2563eb", "#c2410c", "#15803d")
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_WIDTH, _BAR, _LETTER = 960, 18, 8.2


@dataclass(frozen=True)
class Bars:
    """What is drawn of a table.

    Parameters
    ----------
    caption
        What the picture shows.
    labels, values
        Columns: what names a row, and what a bar is as long as; a row without any of the values is left out.
    where
        Only rows that have these values in these columns.
    logarithmic
        Lengths are the number of times ten above a tenth of the least value.
    """

    caption: str
    labels: Sequence[str]
    values: Sequence[str]
    where: Mapping[str, str] = field(default_factory=dict)
    logarithmic: bool = False

    def svg(self, rows: Sequence[Mapping[str, str | float]]) -> str:
        """The picture, readable on light and dark pages; empty where no row has a value."""
        shown: list[tuple[str, list[float]]] = []
        for row in rows:
            found = [number for value in self.values if (number := _number(row[value])) is not None]
            if len(found) == len(self.values) and all(str(row[name]) == is_ for name, is_ in self.where.items()):
                shown.append((", ".join(str(row[label]) for label in self.labels), found))
        lengths = [number for _, numbers in shown for number in numbers]
        if not lengths:
            return ""
        left = round(36 + _LETTER * max(len(name) for name, _ in shown))
        top = 84 if len(self.values) > 1 else 58
        step = _BAR * len(self.values) + 10
        height = top + step * len(shown) + 14
        box = f"0 0 {_WIDTH} {height}"
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" font-family="{_FONT}">',
            f"<title>{escape(self.caption)}</title>",
            f'<rect x="1" y="1" width="{_WIDTH - 2}" height="{height - 2}" rx="14" fill="#f8fafc" stroke="#cbd5e1"/>',
            _words(24, 36, self.caption, size=18, weight=700),
        ]
        if len(self.values) > 1:
            for number, column in enumerate(self.values):
                lines.append(_words(left + 200 * number, 66, column, colour=_COLOURS[number], weight=700))
        for place, (name, numbers) in enumerate(shown):
            y = top + step * place
            lines.append(_words(left - 12, y + 13 + _BAR * (len(numbers) - 1) / 2, name, anchor="end"))
            for number, value in enumerate(numbers):
                length = self._length(value, lengths) * (_WIDTH - left - 110)
                at = y + _BAR * number
                lines.append(
                    f'<rect x="{left}" y="{at}" width="{max(length, 1):.1f}" height="{_BAR - 3}" rx="3" '
                    f'fill="{_COLOURS[number]}"/>'
                )
                lines.append(_words(left + max(length, 1) + 8, at + 12, f"{value:.3g}", size=13, colour="#475569"))
        return "\n".join([*lines, "</svg>", ""])

    def _length(self, value: float, all_values: Sequence[float]) -> float:
        """The share of the longest bar."""
        if not self.logarithmic:
            return max(value, 0.0) / max(all_values)
        floor = min(all_values) / 10
        return math.log(max(value, floor) / floor) / math.log(max(all_values) / floor)


def _number(value: str | float) -> float | None:
    """The first number of a cell; None where there is none."""
    found = _NUMBER.match(str(value).strip())
    return float(found[0].replace(",", "")) if found else None


def _words(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 14,
    anchor: str = "start",
    colour: str = "#0f172a",
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )
