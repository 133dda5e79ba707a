"""FjORD's clusters of clients that can train no more than a share of the model (Horvath et al., 2021, section 6.1)."""

import math
from dataclasses import dataclass
from typing import Any

from edge_fl.core.errors import ConfigError
from edge_fl.methods.heterofl import LEVEL_WIDTHS
from edge_fl.recipes.recipe import open_recipe

__all__ = ["Clusters"]

_COUNTS = (2, 4, 5, 8, 10)  # widths travel in thousandths, and HeteroFL has no level for less than 0.062


@dataclass(frozen=True)
class Clusters:
    """What FjORD calls uniform-5 or uniform-10: ``count`` tiers, of p_max 1, 1 - 1 / count and so on.

    Parameters
    ----------
    count
        How many: 2, 4, 5, 8 or 10.
    drop_scale
        ds, in (0, 1]: each cluster but the ablest has ds / count of the clients, and the ablest the others.
    """

    count: int = 5
    drop_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.count not in _COUNTS:
            raise ConfigError(f"There can be 2, 4, 5, 8 or 10 clusters of clients, not {self.count}.")
        scaled = 1000 * self.drop_scale
        if not 0.5 <= scaled <= 1000 or abs(scaled - round(scaled)) > 1e-6:
            raise ConfigError(f"A drop scale is in (0, 1] and a multiple of 0.001, not {self.drop_scale:g}.")

    @property
    def name(self) -> str:
        """FjORD's."""
        return f"uniform-{self.count}"

    @property
    def widths(self) -> tuple[int, ...]:
        """p_max of each cluster in thousandths, the ablest first."""
        return tuple(1000 - 1000 * i // self.count for i in range(self.count))

    @property
    def mix(self) -> tuple[int, ...]:
        """How many clients there are of each, the ablest first; empty where they are equally many."""
        other = round(1000 * self.drop_scale)
        first = 1000 * self.count - (self.count - 1) * other
        common = math.gcd(first, other)
        return () if first == other else (first // common, *[other // common] * (self.count - 1))

    def parameters(self, recipe: str) -> dict[str, Any]:
        """What gives each cluster as much of the model as it can run; nothing where a recipe has no such parameters.

        Raises ConfigError when a part of the recipe is unknown.
        """
        known = type(open_recipe(recipe, {}).method).Parameters.__struct_fields__
        levels = [next(level for level, width in LEVEL_WIDTHS.items() if width <= own) for own in self.widths]
        given = {"widths": list(self.widths), "levels": levels, "dropout": [1000 - own for own in self.widths]}
        return {key: values for key, values in given.items() if key in known}
