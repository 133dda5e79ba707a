import os
import subprocess
import sys
from typing import Any

import pytest

from edge_fl.commands.options import parameters_of, runtime_name
from edge_fl.recipes.named import NamedRecipe, recipe_and_parameters
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runtimes.base import RUNTIMES


def test_a_runtime_may_be_written_with_a_dash() -> None:
    assert {runtime_name(name.replace("_", "-")) for name in RUNTIMES.names()} == set(RUNTIMES.names())


def test_options_of_a_method_become_its_parameters() -> None:
    nothing = {"dropout": None, "widths": None, "mode": None, "rule": None, "settings": None}
    given = parameters_of(**nothing | {"dropout": "0,0.5", "settings": ["levels=a,b", "scale=false"]})
    assert given == {"dropout": "0,0.5", "levels": ["a", "b"], "scale": "false"}


@pytest.mark.parametrize(
    ("recipe", "given", "taken"),
    [
        ("fjord", {"widths": "1,0.6,0.4"}, {"widths": [1000, 600, 400]}),
        ("fjord", {"widths": 0.6}, {"widths": [600]}),
        ("efd", {"width": "0.4", "widths": ["1", "0.2"]}, {"width": 400, "widths": [1000, 200]}),
        ("fedbiad+dgc", {"dropout": (0, 0.5), "dgc.ratio": 0.01}, {"dropout": [0, 500], "dgc.ratio": 0.01}),
        ("fjord+efd", {"cap": 0.25}, {"cap": 250}),
        ("fedmp", {"granularity": "0.05"}, {"granularity": 50}),
    ],
)
def test_a_share_is_a_share_wherever_it_is_given(
    recipe: str, given: dict[str, Any], taken: dict[str, Any]
) -> None:
    assert recipe_and_parameters(recipe, given) == (recipe, taken, ())
    assert recipe_and_parameters(NamedRecipe(recipe, given), {}) == (recipe, taken, ())
    open_recipe(recipe, taken)


@pytest.mark.parametrize(
    "command", [["device"], ["device", "doctor"], ["device", "enrol"], ["provision", "token"]]
)
def test_help_keeps_what_stands_in_brackets(command: list[str]) -> None:
    """Rich would take a default that the help tells in words for markup, and drop it."""
    found = subprocess.run(
        [sys.executable, "-m", "edge_fl", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert "[default: " in found.stdout
    assert " ." not in " ".join(found.stdout.split())
