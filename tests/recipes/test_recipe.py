"""How recipes are named: a method, whose name may hold a +, and perhaps a compressor."""

import re

import pytest

from edge_fl.core.errors import ConfigError
from edge_fl.methods.base import method_names
from edge_fl.recipes.recipe import open_recipe


@pytest.mark.parametrize(
    ("name", "method", "compressor"),
    [
        ("fjord", "fjord", None),
        ("fjord+dgc", "fjord", "dgc"),
        ("fjord+kd", "fjord+kd", None),
        ("fjord+kd+dgc", "fjord+kd", "dgc"),
        ("fjord+efd", "fjord+efd", None),
        ("efd+topk", "efd", "topk"),
    ],
)
def test_a_recipe_is_a_method_and_perhaps_a_compressor(name: str, method: str, compressor: str | None) -> None:
    recipe = open_recipe(name, {})
    assert recipe.method.name == method
    assert (recipe.compressor and recipe.compressor.name) == compressor
    assert recipe.name == name
    assert open_recipe(recipe.name, recipe.parameters).name == name


def test_parameters_reach_the_part_they_are_named_for() -> None:
    recipe = open_recipe("fjord+kd+dgc", {"alpha": "0.5", "dgc.ratio": "0.25"})
    assert recipe.method.parameters.alpha == 0.5
    assert recipe.compressor.parameters.ratio == 0.25


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kd", "no method 'kd'; there are .*fjord[+]kd.*the compressors .*dgc.*, and best-uplink"),
        ("fjord__kd", "no method 'fjord__kd'"),
        ("fedbiad+kd", "no compressor 'kd'"),
        ("fjord+kd+dgc+topk", "names 2 compressors"),
    ],
)
def test_what_there_is_not_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_recipe(name, {})


def test_a_parameter_of_no_part_is_refused() -> None:
    for name, key in (("fedavg", ".x"), ("fedavg", "dgc.ratio"), ("fedavg+topk", ".x")):
        with pytest.raises(ConfigError, match=f"and no '{re.escape(key)}'"):
            open_recipe(name, {key: 1})


def test_every_method_has_the_name_it_is_found_by() -> None:
    assert [open_recipe(name, {}).method.name for name in method_names()] == method_names()
