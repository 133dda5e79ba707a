"""The coordinator: picks clients, runs rounds, aggregates, evaluates. One thread; a fleet speaks for it."""

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from broker.accountant import Accountant
from broker.best import Best
from broker.buffered import Buffered
from broker.client_selection import ClientSelection
from broker.federated_evaluation import FederatedEvaluator
from broker.final_model import FinalModel
from broker.fleet import Fleet
from broker.model import Applied, GlobalModel, Snapshot
from broker.observer import Observer
from broker.pacing import LATE, OVERDUE, Ask, Decision, Devices, Pacing, Synchronous, Wait
from broker.rollback import Rollback
from broker.round_sum import Summed
from broker.rounds import Report, Round
from broker.run_folder import RunFolder
from broker.secure_aggregation.aggregator import SecureAggregator
from broker.statistics_round import collect_statistics, collects
from broker.store import Store, UnderWay
from broker.summary import RunSummary
from broker.tasks import make_task
from broker.tiers import Tiers
from broker.workers.pool import Workers
from broker.workers.sums import total_of
from edge_fl.core.bundle import Manifest
from edge_fl.core.content import Ref
from edge_fl.core.errors import RunError
from edge_fl.methods.capabilities import model_width, width_factor
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics, TierScore
from edge_fl.runs.privacy import Spent
from edge_fl.training.evaluation import Score
from edge_fl.training.evaluator import Evaluator
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import Task

__all__ = ["Coordinator", "TrainedRound"]

_log = logging.getLogger(__name__)
_MOST = 0.5  # of the entries that devices trained


@dataclass(frozen=True)
class TrainedRound:
    """A round whose updates the model has: begun at ``started``, what the updates came to, and the seconds that each
    client ``took``.
    """

    current: Round
    started: float
    applied: Applied
    took: dict[str, float]

    @property
    def uplink(self) -> dict[str, int]:
        """Bytes of each update, by client in the order of ids."""
        return {client: report.size for client, report in sorted(self.current.reports.items())}


class Coordinator:
    """One run.

    Parameters
    ----------
    config
        How it goes.
    manifest
        The bundle's.
    recipe
        Its server halves assign and learn.
    model
        What is trained.
    dense
        Bytes of a frame that drops nothing, as the run began.
    fleet
        Whoever trains.
    folder
        Where the run's files are kept.
    store
        Its record: a round that it tells of is gone on with.
    tiers
        Say what each device is asked to train.
    evaluator
        Scores the model after each round.
    observer
        Told of everything.
    flying
        Who still trains, of a buffered run that goes on and knows of them.
    secure
        Has devices sum their updates unseen; None where updates come one by one.
    workers
        Add up updates that they took in, where sums are exact; None where that is done here.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        manifest: Manifest,
        recipe: Recipe,
        model: GlobalModel,
        dense: int,
        fleet: Fleet,
        folder: RunFolder,
        store: Store,
        tiers: Tiers,
        evaluator: Evaluator,
        observer: Observer,
        flying: Round | None = None,
        secure: SecureAggregator | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._config, self._recipe, self._model, self._dense = config, recipe, model, dense
        self._fleet, self._folder, self._store = fleet, folder, store
        self._tiers, self._evaluator, self._observer = tiers, evaluator, observer
        self._on_devices = FederatedEvaluator(
            config=config,
            recipe=recipe,
            model=model,
            fleet=fleet,
            tiers=tiers,
            evaluator=evaluator,
            manifest=manifest,
        )
        self._manifest, self._secure, self._workers = manifest, secure, workers
        self._selection = ClientSelection(config.selection, config.seed)
        self._pacing: Pacing = Synchronous(config, self._selection, model.privacy)
        if config.buffer:
            self._pacing = Buffered(config, self._selection, flying)
        self._rollback = Rollback(config.rollback)
        self._accountant = None if config.privacy is None else Accountant(config)
        self._best: Best | None = None
        if config.keep_best is not None:
            self._best = Best(config.keep_best, lower=evaluator.lower_is_better(config.keep_best))
        self._returned_by = fleet.returning + config.gone_after
        self._hinted = False  # at rows that too few devices hold

    def run(self) -> RunSummary:
        """Run every round that is left, write the final weights, and tell the devices that it is over.

        Raises
        ------
        RunError
            When too few devices come, or too few answer however often others are asked, or the loss on held-out data
            is no longer finite. The round's updates are kept, and the devices wait: the run can be resumed.
        """
        rounds = self._store.rounds()
        self._observer.started(self._config, self._dense, tuple(rounds))
        for metrics in rounds:
            self._learn(metrics)
            if self._best is not None:
                self._best.see(metrics)
        if not rounds:
            self._tell_start()
        try:
            while not self._over(len(rounds)):
                rounds.append(self._run_round(len(rounds) + 1))
                self._learn(rounds[-1])
                self._tell_resting(rounds[-1])
        except RunError:
            self._folder.close()
            raise
        best = self._best.round if self._best is not None else 0
        return RunSummary(self._config, self._dense, tuple(rounds), self._end(), best)

    def _tell_start(self) -> None:
        with suppress(RunError):  # of a loss that is no number: the first round says so where it stays so
            if (score := self._score()) is not None:
                self._observer.begins_with(score.scores, score.loss)

    def _over(self, rounds: int) -> bool:
        """Whether no round is left, or the last evaluations were all worse than the best."""
        patience, best = self._config.patience, self._best
        return rounds >= self._config.rounds or (patience > 0 and best is not None and best.since >= patience)

    def _learn(self, metrics: RoundMetrics) -> None:
        """What a round shows of its clients; how long one takes that failed, or was gone, it does not."""
        self._rollback.see(metrics)
        self._selection.learn(metrics)
        if self._accountant is not None:
            self._accountant.see(metrics)
        for client, seconds in metrics.took.items():
            device = self._fleet.registry.get(client)
            timed = client in metrics.uplink or metrics.excused.get(client) == LATE
            if device is not None and timed:
                self._tiers.took(client, device.profile, metrics.tiers[client], seconds)

    def _tell_resting(self, metrics: RoundMetrics) -> None:
        if self._config.by_chance:  # then nobody rests
            return
        for client, until in self._selection.resting(metrics.round + 1).items():
            if client in metrics.tiers:
                _log.info("'%s' rests until round %d: its last updates were missing or clipped", client, until)

    def _end(self) -> Path:
        best = self._best.round if self._best is not None else 0
        weights = self._folder.best(best) if best else self._model.final_weights
        path = self._folder.finish(weights)
        final = FinalModel(self._model, weights, recipe=self._recipe, tiers=self._tiers, evaluator=self._evaluator)
        self._fleet.farewell(self._model.version, final)
        return path

    def _run_round(self, number: int) -> RoundMetrics:
        before = None if self._rollback.factor is None else self._model.snapshot()
        trained, score = self.train_round(number), None
        if self._config.evaluates(number) and before is not None and self._can_redo(trained.current):
            trained, score = self._mended(trained, before)
        collected = self._collect(number)
        if not self._config.evaluates(number):
            return self._close(trained, collected, None, {})
        score = self._score() if score is None or collected else score
        return self._close(trained, collected, score, self._scores_on_devices(trained.current))

    def _can_redo(self, current: Round) -> bool:
        """Whether the updates are kept: a simulation adds them up as they come."""
        return current.sums is None and all(report.path is not None for report in current.reports.values())

    def _mended(self, trained: TrainedRound, before: Snapshot) -> tuple[TrainedRound, Score | None]:
        """The round, made again without some updates if it ruined the model; and the model's score, where it has one.

        What a killed coordinator does of this it does again: nothing is recorded before the round is over.
        """
        score, ruined = self._tried()
        if not ruined:
            return trained, score
        current, clients = trained.current, frozenset(trained.current.reports)

        def redone(left_out: frozenset[str]) -> Applied:
            self._model.go_back(before)
            return self._model.apply(self._total(current, trained.took, left_out))

        def loss(left_out: frozenset[str]) -> float:
            redone(left_out)
            return self._loss()

        alone = {client: loss(clients - {client}) for client in sorted(clients)}
        culprits = self._rollback.culprits(alone, loss)
        if not culprits:
            _log.warning("round %d ruined the model, and no update is to blame: it stays", current.number)
        else:
            _log.warning("round %d ruined the model: made again without %s", current.number, sorted(culprits))
        applied = redone(culprits)
        applied = replace(applied, clipped=applied.clipped | dict.fromkeys(sorted(culprits), 0.0))
        return replace(trained, applied=applied), None

    def _tried(self) -> tuple[Score | None, bool]:
        """The model's score, and whether it is ruined."""
        try:
            score = self._score()
        except RunError:  # of a loss that is no number
            return None, True
        return score, score is not None and self._rollback.ruined(score.loss)

    def _loss(self) -> float:
        try:
            score = self._score()
        except RunError:
            return math.inf
        assert score is not None
        return score.loss

    def _score(self) -> Score | None:
        method = self._recipe.method
        width = model_width(method)
        factor = width_factor(method, self._evaluator.manifest, width)
        return self._evaluator.score(self._model.final_weights, width, factor)

    def train_round(self, number: int) -> TrainedRound:
        """Have clients train, and make the new model of their updates; nothing is evaluated or recorded as over."""
        started, fleet = self._fleet.now(), self._fleet
        current = Round(number, self._model.version, self._pacing.quorum, self._model.max_change)
        broken_off = self._pacing.begin(current, self._store.under_way(number), started)
        if broken_off is None and (needed := self._pacing.needed(number)):
            self._wait_for_devices(needed)
            started = fleet.now()  # who comes to the first round is not what a round takes
        model = fleet.open_round(current, self._model.frame())
        if broken_off is not None:
            self._take_up(current, broken_off)
        if self._pacing.carries and fleet.outlives:
            self._store.ask(0, {client: part.task for client, part in current.parts.items()})  # who still trains
        while (decision := self._decide(current)) != "close":
            match decision:
                case Ask(clients, attempt):
                    self._hand_out(current, clients, model, attempt)
                case Devices(count):
                    self._wait_for_devices(count, besides=current.unavailable)
                case Wait(until):
                    fleet.pump(until)
        took = self._pacing.took(current, fleet.registry, fleet.now())
        fleet.close_round()
        return TrainedRound(current, started, self._model.apply(self._total(current, took)), took)

    def _decide(self, current: Round) -> Decision:
        return self._pacing.decide(current, self._fleet.registry, self._fleet.now())

    def _wait_for_devices(
        self, needed: int, besides: Callable[[float], frozenset[str]] = lambda _: frozenset()
    ) -> None:
        """Until as many are there ``besides`` those it names; raises RunError after ``config.wait`` seconds.

        Devices that may still return are waited for no longer than that, either.
        """
        fleet, until = self._fleet, self._fleet.now() + self._config.wait
        while (there := fleet.registry.count(besides(fleet.now()))) < needed or self._returning():
            if fleet.now() > until and there >= needed:
                return
            if fleet.now() > until:
                timing = fleet.registry.unready
                raise RunError(
                    f"Only {there} of {needed} devices were there within {self._config.wait:.0f} s"
                    f"{f', and {timing} still timed their tiers (raise --wait)' if timing else ''}; start more, or "
                    "lower --clients-per-round and --min-clients."
                )
            fleet.pump(until)

    def _returning(self) -> bool:
        """Whether devices that the run knew when it was broken off may still come back: whoever is first is not all."""
        return self._fleet.now() < self._returned_by and self._fleet.registry.missing()

    def _take_up(self, current: Round, broken_off: UnderWay) -> None:
        """Go on with a round that was broken off: its tasks stand, and whoever registers hears of his again."""
        for client, task in broken_off.tasks.items():
            current.ask(client, task, None)
        for client, judged in broken_off.judged.items():
            current.parts[client].verdict = judged.verdict(self._folder.run, current.round_of(client))
            path = self._folder.updates(current.number)
            report = Report(judged.samples, judged.loss, judged.size, path, judged.offset)
            if judged.code:
                current.excuse(client, f"rejected: {judged.reason}")
            elif self._folder.holds(report, judged.digest):
                current.report(client, report)
            else:
                current.excuse(client, "its update was lost with this machine's power")
        held = [task.since for task in broken_off.tasks.values() if task.changes]
        self._fleet.offer_changes(self._model.changes_since(min(held)) or () if held else ())
        self._fleet.recount(broken_off.rejections)
        current.deadline = self._fleet.now() + self._config.deadline
        self._observer.round_started(current.number, current.outstanding())

    def _hand_out(self, current: Round, picked: list[str], model: Ref, attempt: int) -> None:
        """Ask these clients, in the tier that they can do, once the record has it."""
        tasks = {client: self._task(client, current, model) for client in picked}
        if self._fleet.outlives and tasks:
            self._store.ask(attempt, tasks)
        self._observer.round_started(current.number, [*current.outstanding(), *picked])
        for client, task in tasks.items():
            current.ask(client, task, self._fleet.now())
        self._fleet.ask(tasks)

    def _task(self, client: str, current: Round, model: Ref) -> Task:
        return make_task(
            self._config,
            self._recipe,
            self._model.layout,
            client=client,
            tier=self._tier(client, current),
            round=current.number,
            accepted=self._fleet.registry[client].accepted,
            model=model,
            weights=self._model.weights,
            changes=self._fleet.changes_for(client, self._model),
            withheld=self._secure is not None,
            clipping=None if self._model.privacy is None else self._model.privacy.clipping,
        )

    def _tier(self, client: str, current: Round) -> int:
        """Whose update of an earlier attempt may still come is asked for no other."""
        if client in current.parts:
            return current.parts[client].task.tier
        return self._tiers.of(client, self._fleet.registry[client].profile)

    def _total(self, current: Round, took: dict[str, float], left_out: frozenset[str] = frozenset()) -> Summed:
        """The updates in the order of client ids, whatever the order of arrival; one in memory at a time."""
        if self._secure is not None:
            return self._secure.total(current, took)
        if self._workers is not None and self._model.mergeable:
            return total_of(self._workers, self._model, current, took, recipe=self._recipe, left_out=left_out)
        total, recipe = current.sums or self._model.begin(), self._recipe
        for client, report in sorted(current.reports.items()):
            if report.path is not None and client not in left_out:
                frame = decode_frame(report.content(), self._model.layout, recipe.shared(), recipe.decoders)
                total.add(current.parts[client].task.tier, frame, took.get(client))
        return total

    def _close(
        self,
        trained: TrainedRound,
        collected: dict[int, int],
        score: Score | None,
        on_devices: dict[int, TierScore],
    ) -> RoundMetrics:
        """Record the round, and keep its model."""
        current, fleet, uplink = trained.current, self._fleet, trained.uplink
        number, counted = current.number, fleet.counted()
        tiers = {
            client: part.task.tier for client, part in sorted(current.parts.items()) if not current.awaits(client)
        }
        metrics = RoundMetrics(
            round=number,
            seconds=fleet.now() - trained.started,
            scores={} if score is None else dict(score.scores),
            loss=None if score is None else score.loss,
            train_loss=trained.applied.loss,
            uplink=uplink,
            downlink=dict(sorted(counted.sent.items())),
            excused=current.excused,
            rejections=counted.rejections,
            tiers=tiers,
            took=dict(sorted(trained.took.items())) if fleet.timed else {},
            stale={client: number - first for client in uplink if (first := current.round_of(client)) < number},
            on_devices=on_devices,
            collected=collected,
            clipped=trained.applied.clipped,
            averaged=trained.applied.averaged,
            left_out=trained.applied.left_out,
            privacy=self._spent(trained.applied, tiers),
        )
        self._folder.checkpoints.keep(
            number, self._model.weights, {**self._model.state_dict(), **fleet.state_dict()}
        )
        if self._best is not None and self._best.see(metrics):
            self._folder.keep_best(number, self._model.final_weights)
        self._store.close_round(metrics, fleet.states())
        self._folder.close_round(metrics)
        if self._best is not None:
            self._folder.forget_best(besides=self._best.round)
        self._observer.round_closed(metrics)
        self._hint_at_thin_rows(metrics)
        return metrics

    def _hint_at_thin_rows(self, metrics: RoundMetrics) -> None:
        """Say once what to do where secure aggregation leaves out most of what devices train."""
        secure = self._config.secure
        if secure is None or self._hinted or metrics.left_out <= _MOST:
            return
        self._hinted = True
        _log.warning(
            "round %d: %.0f %% of the trained entries do not count, as fewer than %d devices of a cohort hold their "
            "rows: ask more devices a round, drop less, or lower --secure-holders",
            metrics.round,
            100 * metrics.left_out,
            secure.holders,
        )

    def _spent(self, applied: Applied, asked: Iterable[str]) -> Spent | None:
        """What privacy all rounds cost, with the one that is being closed."""
        if self._accountant is None or applied.noised is None:
            return None
        return Spent(self._accountant.with_round(asked), applied.noised.clip, applied.noised.unclipped)

    def _scores_on_devices(self, current: Round) -> dict[int, TierScore]:
        """Have devices score the model, where that is asked for."""
        if not self._config.evaluate_on:
            return {}
        while self._returning():
            self._fleet.pump()
        busy = {client for client, reason in current.excused.items() if reason in OVERDUE}
        return self._on_devices.scores(current.number, busy)

    def _collect(self, number: int) -> dict[int, int]:
        """Give the final model the BatchNorm statistics of the devices' data, where the run has them collected."""
        if number < self._config.rounds or not collects(self._config, self._recipe.method, self._manifest):
            return {}
        while self._returning():
            self._fleet.pump()
        return collect_statistics(
            number,
            config=self._config,
            method=self._recipe.method,
            manifest=self._manifest,
            model=self._model,
            fleet=self._fleet,
            tiers=self._tiers,
        )
