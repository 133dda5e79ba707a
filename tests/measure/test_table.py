"""A page of results: its order, what is folded, and what is kept of the page before."""

from pathlib import Path

from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row

NARROW: list[Row] = [{"model": "a", "seconds": 1.0}, {"model": "b", "seconds": 2.5}]
BARS = Bars("Seconds of each model", ("model",), ("seconds",))


def result(rows: list[Row], **more: object) -> Result:
    return Result("Title", "edge-fl bench it", "One thing. Two things. Three things. More things.", rows, **more)  # type: ignore[arg-type]


def test_a_page_opens_with_its_picture_and_three_sentences(tmp_path: Path) -> None:
    page = tmp_path / "it.md"
    result(NARROW, bars=BARS).write(page)

    text = page.read_text()
    places = [
        text.index(part) for part in ("# Title", "it-bars.svg", "One thing. Two things. Three things.", "`edge-fl")
    ]
    assert places == sorted(places)
    assert "| a | 1 |" in text
    assert "<summary>The table" not in text
    assert (tmp_path / "it-bars.svg").read_text().count("<rect") == 3  # the card and two bars


def test_a_wide_table_is_folded_with_its_notes() -> None:
    wide: Row = {f"column {i}": float(i) for i in range(12)}
    text = result([wide], notes=["target](args) is a link to nobody"]).markdown()

    assert "<summary>The table: 1 rows, 12 columns</summary>" in text
    assert text.index("1. target]\\(args)") < text.rindex("</details>")


def test_what_was_found_is_kept_when_a_page_is_written_again(tmp_path: Path) -> None:
    page = tmp_path / "it.md"
    result(NARROW).write(page)
    page.write_text(page.read_text().replace("One thing. Two things. Three things.", "b takes 2.5 times as long."))
    result(NARROW).write(page)

    assert "b takes 2.5 times as long." in page.read_text()
    assert "One thing." in page.read_text()  # how it was measured


def test_bars_leave_out_rows_without_a_number_and_rows_of_no_interest() -> None:
    rows: list[Row] = [*NARROW, {"model": "c", "seconds": ""}]

    assert ">c<" not in BARS.svg(rows)
    assert Bars("", ("model",), ("seconds",), where={"model": "b"}).svg(rows).count("<rect") == 2
    assert Bars("", ("model",), ("seconds",), where={"model": "z"}).svg(rows) == ""
