"""Recipes with parameters that were measured to go well together, each under a name of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PRESETS", "Preset", "expanded"]


@dataclass(frozen=True)
class Preset:
    """A recipe, and parameters of it as :func:`edge_fl.recipes.recipe.open_recipe` takes them."""

    recipe: str
    parameters: Mapping[str, Any]


PRESETS: Mapping[str, Preset] = {
    "best-uplink": Preset(
        "fedbiad+tcs",
        {
            "stage_boundary": 0,
            "mode": "units",
            "tcs.global_ratio": 0.1,
            "tcs.local_ratio": 0.01,
            "tcs.bits": 5,
            "server.momentum": 0.5,
        },
    ),
}
"""``best-uplink`` is few bytes over a whole run (docs/benchmarks/uplink.md). Of the units that FedBIAD keeps (no
dropped column, no redraws) clients send the entries of the global mask of TCS, whose positions both ends know, at
5 bits each, from the first round on. On Fashion-MNIST (300 clients, one seed) momentum of 0.9 swings by 7 points from
one evaluation to the next, and 3 bits an entry cost 2 points.
"""


def expanded(name: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What ``name`` stands for, with ``parameters`` in place of a preset's own; any other name as it is."""
    preset = PRESETS.get(name)
    return (name, dict(parameters)) if preset is None else (preset.recipe, {**preset.parameters, **parameters})
