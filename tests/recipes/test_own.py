"""Specs of a person's own code."""

import pytest

from edge_fl.recipes.own import each_spec


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("mine.py:Mine", ["mine.py:Mine"]),
        ("fedavg+mine.py:Mine", ["mine.py:Mine"]),
        ("mine.py:Mine+dgc", ["mine.py:Mine"]),
        ("mine.py:Mine+theirs.py:Theirs", ["mine.py:Mine", "theirs.py:Theirs"]),
        ("a+b/mine.py:Mine", ["a+b/mine.py:Mine"]),
        ("fjord+kd", []),
    ],
)
def test_a_text_is_cut_where_a_coordinator_cuts_it(text: str, specs: list[str]) -> None:
    assert each_spec([text]) == specs
