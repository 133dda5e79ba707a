from edge_fl.commands.options import recipe_of, runtime_name
from edge_fl.runtimes.base import runtime_names


def test_a_runtime_may_be_written_with_a_dash() -> None:
    assert {runtime_name(name.replace("_", "-")) for name in runtime_names()} == set(runtime_names())


def test_shares_become_thousandths_and_lists_have_commas() -> None:
    nothing = {"dropout": None, "widths": None, "mode": None, "rule": None, "settings": ()}
    assert recipe_of("fjord", **nothing | {"widths": "1,0.6,0.4"}) == ("fjord", {"widths": [1000, 600, 400]})
    assert recipe_of("fedbiad", **nothing | {"dropout": "0,0.5", "mode": "units", "rule": "zeros"}) == (
        "fedbiad",
        {"dropout": [0, 500], "mode": "units", "rule": "zeros"},
    )
    assert recipe_of("heterofl", **nothing | {"settings": ["levels=a,b", "scale=false"]}) == (
        "heterofl",
        {"levels": ["a", "b"], "scale": "false"},
    )
