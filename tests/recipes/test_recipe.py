"""How recipes are named: a method, whose name may hold a +, and perhaps a compressor."""

import re

import numpy as np
import pytest

from edge_fl.core.errors import ConfigError
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import method_names
from edge_fl.recipes.recipe import open_recipe

LAYOUT = mlp_layout(2, 3, 3, 2)


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
        ("kd", "no method 'kd': give one of yours .*fjord[+]kd.*the compressors .*dgc.*, and best-uplink"),
        ("fjord__kd", "no method 'fjord__kd'"),
        ("fedbiad+kd", "no compressor 'kd'"),
        ("fjord+kd+dgc+topk", "names 2 compressors"),
        ("best-uplink+dgc", "is a preset with a compressor already: leave '[+]dgc' out"),
    ],
)
def test_what_there_is_not_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_recipe(name, {})


def test_a_parameter_of_no_part_is_refused() -> None:
    for name, key in (("fedavg", ".x"), ("fedavg+topk", ".x")):
        with pytest.raises(ConfigError, match=f"and no '{re.escape(key)}'"):
            open_recipe(name, {key: 1})
    for name, has in (("fedavg", "no compressor"), ("fedavg+topk", "topk")):
        with pytest.raises(ConfigError, match=f"is of the compressor 'dgc', and the method has {has}"):
            open_recipe(name, {"dgc.ratio": 1})


def test_every_method_has_the_name_it_is_found_by() -> None:
    assert [open_recipe(name, {}).method.name for name in method_names()] == method_names()


def test_momentum_on_the_server_goes_with_any_method_and_is_there_where_it_is_asked_for() -> None:
    """v = beta v + g by hand, and a checkpoint in the middle."""
    assert "server.momentum" not in open_recipe("fedavg", {}).parameters
    assert open_recipe("fedavg", {"server.momentum": 0}).parameters == open_recipe("fedavg", {}).parameters
    given = {"server.momentum": "0.5", "dgc.ratio": 0.1}
    one, other = open_recipe("feddrop+dgc", given), open_recipe("feddrop+dgc", given)
    assert one.parameters["server.momentum"] == 0.5
    assert open_recipe(one.name, one.parameters).parameters == one.parameters
    changes = [{"a": np.array([x, -x]), "b": np.array([[x]])} for x in (1.0, 2.0, 3.0)]
    moved = [one.server_update(number, change) for number, change in enumerate(changes[:2], start=1)]
    other.load_state_dict(LAYOUT, {name: array.copy() for name, array in one.state_dict().items()})
    assert [m["b"].item() for m in moved] == [1.0, 2.5]
    for recipe in (one, other):
        assert recipe.server_update(3, dict(changes[2]))["a"].tolist() == [4.25, -4.25]


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("fedavg", {"server.momentum": 1}, r"server's momentum must be in \[0, 1\), not 1"),
        ("fedavg", {"server.momentum": "nan"}, "server's momentum must be in"),
        ("fedavg", {"server.momentum": "much"}, "'momentum' of the server is a number, not 'much'"),
        ("fedavg", {"server.speed": 1}, "The server takes momentum, and no 'speed'"),
        (
            "flexlora",
            {"server.momentum": 0.9},
            "'flexlora' divides adapters anew each round.*leave server.momentum out",
        ),
    ],
)
def test_a_momentum_that_makes_no_sense_is_refused(name: str, parameters: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_recipe(name, parameters)
