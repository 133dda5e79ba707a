"""Which runs can average adapters as products: the aggregation needs every update by itself, of one model."""

from collections.abc import Iterator

from edge_fl.core.errors import ConfigError
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig

__all__ = ["check_products"]


def check_products(config: RunConfig, recipe: Recipe) -> None:
    """Refuse a run that sums updates otherwise: ConfigError, with the reason."""
    if recipe.rule.products:
        for reason in _reasons(config):
            raise ConfigError(f"'{recipe.method.name}' averages products of adapters: {reason}.")


def _reasons(config: RunConfig) -> Iterator[str]:
    if config.robust is not None:
        yield "a robust rule looks at single entries, leave --robust out"
    if config.exact_sums:
        yield "a product has no exact sum, leave --exact-sums out"
    if config.secure is not None:
        yield "sums of factors are not enough, leave --secure-aggregation out"
    if config.privacy is not None:
        yield "how far one device moves a product is not bounded, leave differential privacy out"
    if config.buffer:
        yield "late updates are of adapters that were divided otherwise, leave --buffer out"
