"""Presets: recipes by a name of their own."""

import pytest

from edge_fl.recipes.presets import PRESETS, expanded
from edge_fl.recipes.recipe import open_recipe


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_recipe_that_opens(name: str) -> None:
    recipe, parameters = expanded(name, {})

    assert open_recipe(recipe, parameters).name == recipe


def test_what_the_user_sets_is_instead_of_the_presets_own() -> None:
    _, parameters = expanded("best-uplink", {"tcs.bits": "8", "dropout": [200]})

    opened = open_recipe("fedbiad+tcs", parameters)
    assert opened.parameters["tcs.bits"] == 8
    assert opened.parameters["dropout"] == (200,)
    assert opened.parameters["mode"] == "units"


def test_any_other_name_is_left_as_it_is() -> None:
    assert expanded("fjord+kd", {"widths": [1000]}) == ("fjord+kd", {"widths": [1000]})
