import pytest

from edge_fl.commands.tables import show_table


def test_a_column_without_text_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("Rounds", ("round", "epsilon", "note"), [(1, "", ""), (2000, "", "late")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[1] == ["round", "note"]
    assert lines[-1] == ["2,000", "late"]


def test_nothing_is_shown_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("Rounds", ("round",), [])
    assert capsys.readouterr().out == ""
