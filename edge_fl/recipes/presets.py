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
            "tcs.global_ratio": 0.02,
            "tcs.local_ratio": 0.001,
            "tcs.bits": 5,
            "tcs.warmup": 25,
            "server.momentum": 0.5,
        },
    ),
}
"""``best-uplink`` is few bytes a steady round at FedAvg's accuracy (docs/benchmarks/uplink.md): of the units that
FedBIAD keeps (no dropped column, no redraws) the entries of TCS's global mask, whose positions both ends know, 5 bits
each. Of 60 rounds on Fashion-MNIST a warm-up of 20 ends 0.27 points below FedAvg, one of 25 0.12 above it (3 seeds).
"""


def expanded(name: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What ``name`` stands for, with ``parameters`` in place of a preset's own; any other name as it is."""
    preset = PRESETS.get(name)
    return (name, dict(parameters)) if preset is None else (preset.recipe, {**preset.parameters, **parameters})
