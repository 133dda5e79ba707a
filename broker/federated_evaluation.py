"""Federated evaluation: devices score the model on the samples that they hold out."""

from collections.abc import Set

from broker.defence import bounds_of
from broker.fleet import Fleet
from broker.model import GlobalModel
from broker.score_round import ScoreRound
from broker.tiers import Tiers
from edge_fl.core.bundle import Manifest
from edge_fl.core.content import Ref
from edge_fl.core.randomness import Stream
from edge_fl.methods.capabilities import evaluated_width, width_factor
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import TierScore
from edge_fl.training.evaluator import Evaluator
from edge_fl.wire.messages import Evaluate

__all__ = ["FederatedEvaluator"]


class FederatedEvaluator:
    """Asks ``config.evaluate_on`` devices for their scores of what the run would give if it ended now.

    Each evaluates the first units of every block, as many as its tier is to have (``evaluated_width``).

    Parameters
    ----------
    config
        Of the run; nobody is waited for beyond its deadline.
    recipe
        Says how wide a tier's model is.
    model
        What is scored.
    fleet
        The devices.
    tiers
        Say what each is asked in.
    evaluator
        Knows which statistics suit a width, and which scores are wanted.
    manifest
        The bundle's.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        recipe: Recipe,
        model: GlobalModel,
        fleet: Fleet,
        tiers: Tiers,
        evaluator: Evaluator,
        manifest: Manifest,
    ) -> None:
        self._manifest = manifest
        self._config, self._recipe, self._model = config, recipe, model
        self._fleet, self._tiers, self._evaluator = fleet, tiers, evaluator
        self._silent: Set[str] = frozenset()

    def scores(self, round: int, busy: Set[str] = frozenset()) -> dict[int, TierScore]:
        """What devices found after ``round``, by tier: of a tier that nobody answered for, nothing.

        Those that still are ``busy`` with the round, and those that did not answer when they were asked last, are asked
        where there are too few others: each may take the whole deadline.
        """
        current = ScoreRound(
            round, metrics=self._evaluator.on_devices, manifest=self._manifest, bounds=bounds_of(self._config)
        )
        model, outcome = self._fleet.offer_model(self._model.final_frame()), self._model.final_weights
        suited: dict[int, int] = {}  # by width, as many clients have one
        for client in self._pick(round, busy | self._silent):
            current.tiers[client] = self._tiers.of(client, self._fleet.registry[client].profile)
            width = evaluated_width(self._recipe.method, current.tiers[client])
            if width not in suited:
                suited[width] = self._evaluator.statistics(outcome, width)
            current.tasks[client] = self._task(client, round, model, width=width, statistics=suited[width])
        self._fleet.poll(current, deadline=self._config.deadline, gone_after=self._config.gone_after)
        asked, answered = frozenset(current.tasks), frozenset(current.answers)
        self._silent = self._silent - asked | (asked - answered)
        return current.by_tier()

    def _pick(self, round: int, last: Set[str]) -> list[str]:
        """Some of those that are there and hold samples out, drawn by seed and round; of ``last`` if need be."""
        registry = self._fleet.registry
        able = [client for client in registry.present() if registry[client].profile.test_samples]
        order = Stream.of(seed=self._config.seed, purpose="evaluation", round=round).permutation(len(able))
        drawn = sorted((able[i] for i in order), key=last.__contains__)
        return sorted(drawn[: self._config.evaluate_on])

    def _task(self, client: str, round: int, model: Ref, *, width: int, statistics: int) -> Evaluate:
        changes = self._fleet.changes_for(client, self._model)
        return Evaluate(
            run=self._config.run,
            round=round,
            model=model,
            width=width,
            statistics=statistics,
            batch=self._config.batch,
            factor=width_factor(self._recipe.method, self._manifest, width),
            scores=tuple(metric.name for metric in self._evaluator.on_devices),
            since=round - len(changes or ()),
            changes=changes,
        )
