"""What secure aggregation is set to, and which runs cannot have it."""

from collections.abc import Callable
from functools import partial

from broker.defence import bounds_of
from broker.secure_aggregation.round_total import Plan
from broker.statistics_round import collects
from edge_fl.core.bundle import Manifest
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig
from edge_fl.wire.values import FLOAT32

__all__ = ["check_secure", "plan_of"]


def plan_of(config: RunConfig, recipe: Recipe, layout: Layout) -> Callable[[int], Plan] | None:
    """How each round is summed, by its number; None where updates come one by one."""
    if config.secure is None:
        return None
    return partial(
        Plan, layout, recipe.method.mode, recipe.rule, bounds_of(config), config.secure, config.run, config.seed
    )


def check_secure(config: RunConfig, recipe: Recipe, manifest: Manifest) -> None:
    """Refuse a run whose updates cannot be summed unseen: ConfigError, with the reason."""
    secure = config.secure
    if secure is None:
        return
    reasons = {
        "robust rules and rollback look at single updates": config.robust is not None
        or config.rollback is not None,
        "a buffered round sums updates of several models": config.buffer > 0,
        f"'{recipe.name}' sends compressed or single entries, and whole rows alone can be summed": (
            recipe.values != FLOAT32
        ),
        "BatchNorm statistics of each width show which width a device trained": bool(manifest.statistic_widths),
        f"'{recipe.method.name}' collects the BatchNorm statistics of single devices: give --no-collect-statistics": (
            collects(config, recipe.method, manifest)
        ),
        "scores on devices are those of single devices": config.evaluate_on > 0,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise ConfigError(f"Secure aggregation is not possible here: {reason}.")
    if config.needed < secure.holders:
        raise ConfigError(
            f"Secure aggregation wants {secure.holders} devices that hold a row, and a round may close with "
            f"{config.needed}: ask more (serve --clients-per-round and --quorum, simulate --clients and --fraction), "
            "or lower --secure-holders."
        )
