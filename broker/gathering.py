"""The end of a run whose method has BatchNorm's statistics gathered from the devices."""

import msgspec

from broker.fleet import Fleet
from broker.model import GlobalModel
from broker.statistics_round import StatisticsRound, ask, widths_asked
from broker.tiers import Tiers
from edge_fl.core.bundle import Manifest
from edge_fl.methods.base import Method
from edge_fl.runs.config import RunConfig

__all__ = ["gather"]


def gather(
    round: int,
    *,
    config: RunConfig,
    method: Method,
    manifest: Manifest,
    model: GlobalModel,
    fleet: Fleet,
    tiers: Tiers,
) -> dict[int, int]:
    """Ask every device that is there for statistics of ``model`` after its last ``round``, and give them to it.

    Returns
    -------
    How many samples are behind the statistics of each width (thousandths).
    """
    current, registry = StatisticsRound(round, manifest=manifest), fleet.registry
    ref = fleet.offer_model(model.frame())
    current.tiers = {client: tiers.of(client, registry[client].profile) for client in registry.present()}
    for client, width in widths_asked(method, manifest, current.tiers).items():
        changes = fleet.changes_for(client, model)
        task = ask(config, round, ref, width)
        current.tasks[client] = msgspec.structs.replace(task, since=round - len(changes or ()), changes=changes)
    fleet.poll(current, deadline=config.deadline, gone_after=config.gone_after)
    model.weights = current.combined(model.weights)
    return current.samples()
