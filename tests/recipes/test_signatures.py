"""What help() and the documentation say of parameters is what methods and compressors take."""

import inspect
import re
from pathlib import Path

import pytest

import edge_fl
from edge_fl.compressors.base import compressor_names
from edge_fl.core.errors import ConfigError
from edge_fl.methods.base import method_names
from edge_fl.recipes.recipe import open_recipe, shares_in_thousandths
from edge_fl.recipes.signatures import defaults, described

NAMES = [*method_names(), *compressor_names()]
PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_each_parameter_is_described(name: str) -> None:
    text = described(name)
    assert [key for key in defaults(name) if not re.search(rf"^{key}$|``{key}``", text, re.MULTILINE)] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_page_lists_each_parameter_with_its_default(name: str) -> None:
    (row,) = re.findall(rf"^\| `{re.escape(name)}` \| (`\w+[=`].*) \|$", PAGE, re.MULTILINE)
    listed = dict(re.findall(r"`(\w+)(?:=([^`]*))?`", row))
    assert list(listed) == list(defaults(name))

    prefix = f"{name}." if name in compressor_names() else ""
    given = {
        f"{prefix}{key}": value.split(",") if "," in value else value for key, value in listed.items() if value
    }
    assert open_recipe(name, shares_in_thousandths(name, given)).parameters == open_recipe(name, {}).parameters


def test_python_tells_parameters_as_a_person_gives_them() -> None:
    shown = inspect.signature(edge_fl.FedDrop)
    assert shown.parameters["dropout"].default == 0.5
    assert inspect.signature(edge_fl.HeteroFL).parameters["levels"].default == ("a", "b", "c", "d", "e")
    assert "Draw a client's level anew each round" in (inspect.getdoc(edge_fl.HeteroFL) or "")
    assert "The rate p in [0, 1)" in (inspect.getdoc(edge_fl.FedBIAD) or "")


def test_a_name_of_neither_has_no_parameters() -> None:
    with pytest.raises(ConfigError, match="fedsgd"):
        defaults("fedsgd")
