"""Sentences of errors for users of Python."""

import pytest

from edge_fl.core.errors import ConfigError
from edge_fl.core.python_words import in_python, speaks_python

NAMES = {"tiers", "scores", "buffer", "collect_statistics", "batch"}


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("for all of them give --tiers 2.", "for all of them give tiers=2."),
        (
            "leave --buffer out, or give --no-collect-statistics.",
            "leave buffer out, or give collect_statistics=False.",
        ),
        ("name one with --score loss", "name one with scores loss"),
        ("give --database that it was begun with", "give --database that it was begun with"),
        ("of --batch 20, not 2-tiers", "of batch=20, not 2-tiers"),
    ],
)
def test_options_are_parameters_where_there_is_one(sentence: str, said: str) -> None:
    assert in_python(sentence, NAMES) == said


def test_a_function_speaks_of_its_own_parameters_and_keeps_its_kind_of_error() -> None:
    @speaks_python("buffer")
    def begin(tiers: int) -> None:
        """Begin."""
        raise ConfigError(f"give --tiers {tiers}, and leave --buffer or --robust out.")

    with pytest.raises(ConfigError, match=r"^give tiers=2, and leave buffer or --robust out\.$"):
        begin(2)
    assert (begin.__name__, begin.__doc__) == ("begin", "Begin.")
