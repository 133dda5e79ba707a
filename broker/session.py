"""Puts a run together from its parts: what `edge-fl serve` and the demo share."""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from broker.config import RunConfig
from broker.coordinator import Coordinator
from broker.evaluation import Evaluator
from broker.gateway import Gateway
from broker.model import GlobalModel
from broker.observer import Observer
from broker.programs import missing_program
from broker.run_folder import RunFolder
from broker.summary import RunSummary, draw
from edge_fl.bundle import Bundle
from edge_fl.data.registry import load_dataset
from edge_fl.errors import ConfigError
from edge_fl.methods.base import Method
from edge_fl.recipe import Recipe, open_recipe
from edge_fl.transport.connection import BrokerAddress, Connection
from edge_fl.wire.messages import Topics

__all__ = ["check_recipe", "new_run_id", "serve"]


def new_run_id() -> str:
    """A name for a run that sorts by time and that no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def serve(
    *,
    bundle: Bundle,
    config: RunConfig,
    root: Path,
    address: BrokerAddress,
    observer: Observer,
    fleet: str = "edge-fl",
    connect_timeout: float = 15.0,
) -> RunSummary:
    """Run ``config`` on ``bundle`` over the broker at ``address``; the folder ``root`` gets results and a plot.

    Raises
    ------
    ConfigError
        When the method, its parameters or the batch do not fit the bundle.
    BrokerError
        When no broker answers.
    RunError
        When too few devices come or answer.
    """
    recipe = open_recipe(config.method, config.parameters)
    check_recipe(bundle, recipe, config)
    evaluator = Evaluator(bundle, load_dataset(bundle.manifest.dataset))
    topics = Topics(fleet)
    connection = Connection(
        address=address, client_id=f"coordinator-{config.run}", subscriptions=Gateway.subscriptions(topics)
    )
    connection.open(timeout=connect_timeout)
    try:
        folder = RunFolder(root, config)
        gateway = Gateway(
            bundle=bundle,
            recipe=recipe,
            batch=config.batch,
            folder=folder,
            connection=connection,
            topics=topics,
            observer=observer,
        )
        coordinator = Coordinator(
            config=config,
            recipe=recipe,
            model=GlobalModel(bundle.layout, bundle.weights(), recipe=recipe, run=config.run),
            gateway=gateway,
            folder=folder,
            evaluator=evaluator,
            observer=observer,
        )
        summary = coordinator.run()
    finally:
        connection.close()
    draw(summary)
    return summary


def check_recipe(bundle: Bundle, recipe: Recipe, config: RunConfig, *, tiers: int | None = None) -> None:
    """Refuse before any device is asked what no device of a tier could do: ConfigError.

    ``tiers`` is how many tiers there are, None where it is not known: then it is as many as the method tells apart.
    """
    method, _ = recipe.method, recipe.rule
    if reason := method.unfit(bundle.manifest):
        raise ConfigError(reason)
    for tier in range(method.tiers if tiers is None else min(tiers, method.tiers)):
        _check_tier(bundle, method, tier, config.batch)


def _check_tier(bundle: Bundle, method: Method, tier: int, batch: int) -> None:
    for block, count in method.counts(bundle.layout, tier).items():
        if count == 0:
            raise ConfigError(f"'{method.name}' would keep no unit of block '{block}' in tier {tier}; drop less.")
    reasons = [missing_program(bundle, runtime, method, tier, batch) for runtime in bundle.manifest.programs]
    if all(reasons):
        raise ConfigError(reasons[0])
    held = bundle.manifest.statistic_widths
    missing = sorted(set(method.statistic_widths(tier)) - set(held), reverse=True)
    if held and missing:
        raise ConfigError(
            f"'{method.name}' needs BatchNorm statistics of the widths {_words(missing)} in tier {tier}, and the "
            f"bundle has those of {_words(held)}: export it with {_words(missing)} among its --widths, or set others."
        )


def _words(widths: Sequence[int]) -> str:
    return ", ".join(f"{width / 1000:g}" for width in widths)
