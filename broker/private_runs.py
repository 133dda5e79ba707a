"""What a run with differential privacy may not do: each refusal has its reason."""

import logging
from collections.abc import Iterator

from broker.privacy import TOLD
from broker.statistics_round import collects
from edge_fl.core.bundle import Manifest
from edge_fl.core.errors import ConfigError
from edge_fl.methods.capabilities import LearnsFromReports
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig

__all__ = ["check_private"]

_log = logging.getLogger(__name__)


def check_private(config: RunConfig, recipe: Recipe, manifest: Manifest) -> None:
    """Refuse what would tell more of a device than is counted: ConfigError, the reason in a sentence."""
    if config.privacy is None:
        return
    for reason in (*_of_recipe(config, recipe, manifest), *_of_config(config)):
        raise ConfigError(f"Differential privacy: {reason}.")
    if manifest.layout.statistics:
        _log.warning("with differential privacy BatchNorm's statistics stay as they begin")


def _of_recipe(config: RunConfig, recipe: Recipe, manifest: Manifest) -> Iterator[str]:
    method, name = recipe.method, recipe.method.name
    if recipe.compressor is not None:
        yield (
            f"'{recipe.compressor.name}' changes updates after the clip, and the places it sends tell of the data: "
            "leave the compressor out"
        )
    if isinstance(method, LearnsFromReports):
        yield f"the server of '{name}' learns from what single devices report: choose another method"
    if recipe.compressor is None and not recipe.draws_without_data:
        yield f"in '{name}' devices choose units by their data, and the choice has no noise: choose another method"
    if collects(config, method, manifest):
        yield f"'{name}' collects BatchNorm's statistics, which have no noise: give --no-collect-statistics"
    if "rule" in config.parameters or config.parameters.get("weighting") == "samples":
        yield "all clients and rows count alike, over a fixed number: leave the rule and the weighting out"


def _of_config(config: RunConfig) -> Iterator[str]:
    privacy, clients = config.privacy, config.clients_per_round
    assert privacy is not None
    if config.buffer:
        yield "late updates of a buffered run have other weights and chances: leave --buffer out"
    if config.robust is not None:
        yield "a robust rule is no sum, and nobody knows how much one device moves it: leave --robust out"
    if config.secure is not None:
        yield "the coordinator cannot clip what it does not see: leave --secure-aggregation out"
    if config.rollback is not None:
        yield "a round made again without some updates would be a second answer: leave --rollback out"
    if (config.samples_bound, config.norm_bound, config.max_samples) != (None, None, None):
        yield "the clip bounds each device, and other bounds learn from the data: leave them out"
    if config.evaluate_on:
        yield "scores from devices have no noise: leave --evaluate-on out"
    if config.by_chance and privacy.devices is None:
        yield "the chance of a device to be asked is counted: say how many devices the fleet has (--dp-devices)"
    if config.by_chance and clients > (privacy.devices or clients):
        yield f"{clients} clients a round cannot be asked of {privacy.devices} devices: lower --clients-per-round"
    if privacy.quantile is not None and privacy.deviation >= 2 * clients / TOLD:
        yield (
            f"for a noise of {privacy.deviation:g} a clip by quantile takes more than {10 * privacy.deviation:.0f} "
            "clients a round: ask more, or leave --dp-quantile out"
        )
