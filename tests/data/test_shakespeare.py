import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import DataError
from edge_fl.data.shakespeare import INFO, speeches_by_role, tokens_of

PLAY = """
\tA PLAY

HAMLET\tson to the late king. (HAMLET:)

\tPROLOGUE


Chorus\tTwo households.



\tA PLAY


ACT I



SCENE I\tElsinore. A platform
\tbefore the castle.


\t[Enter HAMLET,
\tand DON ADRIANO]

HAMLET\tTo be, [Aside] or not
\tto be:

\t[Exeunt others]

\tthat is the question.

DON ADRIANO
DE ARMADO\tAy.

First Clown: Nay.

HAMLET\tWords, words.



\tEPILOGUE


\t[Spoken by nobody]

\tThe king's a beggar.
"""


def test_each_role_has_its_speeches_and_nothing_else() -> None:
    assert speeches_by_role(PLAY, "f") == {
        "Chorus": ["Two households."],
        "HAMLET": ["To be,  or not\nto be:\nthat is the question.", "Words, words."],
        "DON ADRIANO DE ARMADO": ["Ay."],
        "First Clown": ["Nay."],
    }


def test_a_text_without_acts_is_refused() -> None:
    with pytest.raises(DataError, match="'f' is no play"):
        speeches_by_role("Shall I compare thee to a summer's day?\n", "f")


@given(
    st.lists(
        st.sampled_from([*PLAY.split("\n"), "\t", "[", "]", ":", "A:b:c", "\ta\tb", "\r", "\x0b"]), max_size=40
    )
)
def test_any_lines_are_read(lines: list[str]) -> None:
    for role, speeches in speeches_by_role("\n".join(["ACT I", *lines]), "f").items():
        assert role == role.strip()
        assert all(speeches)


def test_tokens_mark_speeches_and_are_those_of_the_vocabulary() -> None:
    assert INFO.classes == 90
    assert tokens_of(["dh", "\t|"]).tolist() == [2, 4, 5, 3, 2, 1, 1, 3]
    assert tokens_of(["\r"]).tolist() == [2, 89, 3]
    assert tokens_of([]).dtype == np.int64
