"""The coordinator: picks devices, runs rounds, aggregates, evaluates. One thread; the gateway speaks for it."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from broker.buffered import Buffered
from broker.client_selection import ClientSelection
from broker.federated_evaluation import FederatedEvaluator
from broker.gateway import RETURN_SECONDS, Gateway
from broker.gathering import gather
from broker.model import GlobalModel
from broker.observer import Observer
from broker.pacing import OVERDUE, Ask, Decision, Devices, Pacing, Synchronous
from broker.rounds import Report, Round
from broker.run_folder import RunFolder
from broker.statistics_round import gathers
from broker.store import Store, UnderWay
from broker.summary import RunSummary
from broker.tasks import make_task
from broker.tiers import Tiers
from edge_fl.core.bundle import Manifest
from edge_fl.core.content import Ref
from edge_fl.core.errors import RunError
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics, TierScore
from edge_fl.training.evaluation import Score
from edge_fl.training.evaluator import Evaluator
from edge_fl.wire.frame import Frame, decode_frame
from edge_fl.wire.messages import Task

__all__ = ["Coordinator"]

_log = logging.getLogger(__name__)
_LINGER_SECONDS = (1.0, 5.0)


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
    gateway
        Speaks with the devices.
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
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        manifest: Manifest,
        recipe: Recipe,
        model: GlobalModel,
        dense: int,
        gateway: Gateway,
        folder: RunFolder,
        store: Store,
        tiers: Tiers,
        evaluator: Evaluator,
        observer: Observer,
    ) -> None:
        self._config, self._recipe, self._model, self._dense = config, recipe, model, dense
        self._gateway, self._folder, self._store = gateway, folder, store
        self._tiers, self._evaluator, self._observer = tiers, evaluator, observer
        self._on_devices = FederatedEvaluator(
            config=config,
            recipe=recipe,
            model=model,
            gateway=gateway,
            tiers=tiers,
            evaluator=evaluator,
            manifest=manifest,
        )
        self._manifest = manifest
        self._selection = ClientSelection(config.selection, config.seed)
        self._pacing: Pacing = (Buffered if config.buffer else Synchronous)(config, self._selection)
        known = bool(store.devices())  # when the run was broken off
        self._patience = time.monotonic() + RETURN_SECONDS + config.gone_after if known else 0.0

    def run(self) -> RunSummary:
        """Run every round that is left, write the final weights, and tell the devices that it is over.

        Raises
        ------
        RunError
            When too few devices come, or too few answer however often others are asked, or the loss on held-out data
            is no longer finite. The round's updates are kept, and the devices wait: the run can be resumed.
        """
        self._observer.started(self._config, self._dense)
        rounds = self._store.rounds()
        for metrics in rounds:
            self._learn(metrics)
        try:
            for number in range(len(rounds) + 1, self._config.rounds + 1):
                rounds.append(self._run_round(number))
                self._learn(rounds[-1])
        except RunError:
            self._folder.close()
            raise
        return RunSummary(self._config, self._dense, tuple(rounds), self._end())

    def _learn(self, metrics: RoundMetrics) -> None:
        """What a round shows of its clients; how long one takes that failed, or is gone, it does not."""
        self._selection.learn(metrics)
        lost = self._lost(after=0.0)
        for client, seconds in metrics.took.items():
            device = self._gateway.registry.get(client)
            timed = client in metrics.uplink or (metrics.excused.get(client) in OVERDUE and client not in lost)
            if device is not None and timed:
                self._tiers.took(client, device.profile, metrics.tiers[client], seconds)

    def _end(self) -> Path:
        weights = self._folder.finish(self._model.outcome)
        self._farewell()
        return weights

    def _run_round(self, number: int) -> RoundMetrics:
        started = time.monotonic()
        current = Round(number, self._model.version, self._pacing.quorum, self._model.reach)
        broken_off = self._pacing.begin(current, self._store.under_way(number), started)
        if broken_off is None and (needed := self._pacing.needed(number)):
            self._wait_for_devices(needed)
        model = self._gateway.open_round(current, self._model.frame())
        if broken_off is not None:
            self._take_up(current, broken_off)
        if self._pacing.carries:
            self._store.ask(0, current.tasks, current.tiers)  # of those who still train, once more
        while (decision := self._decide(current)) != "close":
            match decision:
                case Ask(clients, attempt):
                    self._hand_out(current, clients, model, attempt)
                case Devices(count):
                    self._wait_for_devices(count, besides=current.unavailable)
                case "wait":
                    self._gateway.pump()
        return self._close(current, started)

    def _decide(self, current: Round) -> Decision:
        return self._pacing.decide(current, self._gateway.registry, time.monotonic())

    def _wait_for_devices(
        self, needed: int, besides: Callable[[float], frozenset[str]] = lambda _: frozenset()
    ) -> None:
        """Until as many are there ``besides`` those it names; raises RunError after ``config.wait`` seconds.

        Devices that may still return are waited for no longer than that, either.
        """
        until = time.monotonic() + self._config.wait
        while (there := self._gateway.registry.count(besides(time.monotonic()))) < needed or self._returning():
            if time.monotonic() > until and there >= needed:
                return
            if time.monotonic() > until:
                timing = self._gateway.registry.unready
                raise RunError(
                    f"Only {there} of {needed} devices were there within {self._config.wait:.0f} s"
                    f"{f', and {timing} still timed their tiers (raise --wait)' if timing else ''}; start more, or "
                    "lower --clients-per-round."
                )
            self._gateway.pump()

    def _returning(self) -> bool:
        """Whether devices that the run knew when it was broken off may still come back: whoever is first is not all."""
        return time.monotonic() < self._patience and self._gateway.registry.missing()

    def _take_up(self, current: Round, broken_off: UnderWay) -> None:
        """Go on with a round that was broken off: its tasks stand, and whoever registers hears of his again."""
        current.tasks |= broken_off.tasks
        current.tiers |= broken_off.tiers
        for client, judged in broken_off.judged.items():
            current.verdicts[client] = judged.verdict(self._folder.run, current.round_of(client))
            path = self._folder.updates(current.number)
            report = Report(path, judged.offset, judged.samples, judged.loss, judged.size)
            if judged.code:
                current.excuse(client, f"rejected: {judged.reason}")
            elif self._folder.holds(report, judged.digest):
                current.report(client, report)
            else:
                current.excuse(client, "its update was lost with this machine's power")
        held = [task.since for task in broken_off.tasks.values() if task.changes]
        self._gateway.offer_changes(self._model.changes_since(min(held)) or () if held else ())
        self._gateway.rejections.update(broken_off.rejections)
        current.deadline = time.monotonic() + self._config.deadline
        self._observer.round_started(current.number, current.outstanding())

    def _hand_out(self, current: Round, picked: list[str], model: Ref, attempt: int) -> None:
        """Ask these clients, in the tier that they can do, once the record has it."""
        for client in picked:  # whose update of an earlier attempt may still come is asked for no other
            current.tiers.setdefault(client, self._tiers.of(client, self._gateway.registry[client].profile))
        tasks = {client: self._task(client, current, model) for client in picked}
        self._store.ask(attempt, tasks, current.tiers)
        self._observer.round_started(current.number, [*current.outstanding(), *picked])
        for client, task in tasks.items():
            current.excused.pop(client, None)
            current.asked_at.setdefault(client, time.monotonic())
            current.tasks[client] = task
            self._gateway.ask(client, task)

    def _task(self, client: str, current: Round, model: Ref) -> Task:
        return make_task(
            self._config,
            self._recipe,
            self._model.layout,
            client=client,
            tier=current.tiers[client],
            round=current.number,
            accepted=self._gateway.registry[client].accepted,
            model=model,
            weights=self._model.weights,
            changes=self._gateway.changes_for(client, self._model),
        )

    def _close(self, current: Round, started: float) -> RoundMetrics:
        """Aggregate in the order of client ids, whatever the order of arrival; evaluate; keep."""
        number, took = current.number, self._pacing.took(current, time.monotonic())
        self._gateway.close_round()
        reports = {client: current.reports[client] for client in sorted(current.reports)}
        train_loss = self._model.aggregate(self._updates(reports, current.tiers), took)
        gathered = self._gather(number)
        score, on_devices = self._evaluate(current) if self._config.evaluates(number) else (None, {})
        metrics = RoundMetrics(
            round=number,
            seconds=time.monotonic() - started,
            scores={} if score is None else dict(score.scores),
            loss=None if score is None else score.loss,
            train_loss=train_loss,
            uplink={client: report.size for client, report in reports.items()},
            downlink=dict(sorted(self._gateway.sent.items())),
            excused=dict(current.excused),
            rejections=dict(self._gateway.rejections),
            tiers={
                client: current.tiers[client] for client in sorted(current.tiers) if not current.awaits(client)
            },
            took=dict(sorted(took.items())),
            stale={client: number - first for client in reports if (first := current.round_of(client)) < number},
            on_devices=on_devices,
            gathered=gathered,
        )
        self._gateway.rejections.clear()
        self._gateway.sent.clear()
        self._folder.checkpoints.keep(number, self._model.weights, self._model.learned())
        self._store.close_round(metrics)
        self._folder.close_round(metrics)
        self._observer.round_closed(metrics)
        return metrics

    def _evaluate(self, current: Round) -> tuple[Score | None, dict[int, TierScore]]:
        """Score the model here, and on devices where that is asked for."""
        score = self._evaluator.score(self._model.outcome, self._recipe.method.model_width)
        if not self._config.evaluate_on:
            return score, {}
        while self._returning():
            self._gateway.pump()
        busy = {client for client, reason in current.excused.items() if reason in OVERDUE}
        return score, self._on_devices.scores(current.number, busy)

    def _gather(self, number: int) -> dict[int, int]:
        """Give the final model the BatchNorm statistics of the devices' data, where the method has them gathered."""
        if number < self._config.rounds or not gathers(self._recipe.method, self._manifest):
            return {}
        while self._returning():
            self._gateway.pump()
        return gather(
            number,
            config=self._config,
            method=self._recipe.method,
            manifest=self._manifest,
            model=self._model,
            gateway=self._gateway,
            tiers=self._tiers,
        )

    def _updates(self, reports: dict[str, Report], tiers: dict[str, int]) -> Iterator[tuple[int, Frame]]:
        """Each accepted update with the tier it was asked for in, one in memory at a time."""
        for client, report in reports.items():
            yield (
                tiers[client],
                decode_frame(report.content(), self._model.layout, self._recipe.shared(), self._recipe.decoders),
            )

    def _farewell(self) -> None:
        """Tell the devices for a while, and longer if one is reconnecting just now: it would wait for ever."""
        shortest, longest = (time.monotonic() + seconds for seconds in _LINGER_SECONDS)
        while time.monotonic() < shortest or (time.monotonic() < longest and self._lost(after=0.0)):
            self._gateway.finish(self._model.version)
            self._gateway.pump()

    def _lost(self, after: float) -> set[str]:
        return self._gateway.registry.lost(time.monotonic(), after)
