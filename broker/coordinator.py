"""The coordinator: picks devices, runs rounds, aggregates, evaluates. One thread; the gateway speaks for it."""

import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

from broker.config import RunConfig
from broker.evaluation import Evaluator
from broker.gateway import RETURN_SECONDS, Gateway
from broker.model import GlobalModel
from broker.observer import Observer
from broker.rounds import Report, Round
from broker.run_folder import RoundMetrics, RunFolder
from broker.store import Store, UnderWay
from broker.summary import RunSummary
from broker.tasks import make_task
from edge_fl.errors import RunError
from edge_fl.recipe import Recipe
from edge_fl.wire.frame import Frame, decode_frame
from edge_fl.wire.messages import Ref, Task

__all__ = ["Coordinator"]

_log = logging.getLogger(__name__)
_ATTEMPTS = 3
_LINGER_SECONDS = (1.0, 5.0)


class Coordinator:
    """One run.

    Parameters
    ----------
    config
        How it goes.
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
    evaluator
        Scores the model after each round.
    observer
        Told of everything.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        recipe: Recipe,
        model: GlobalModel,
        dense: int,
        gateway: Gateway,
        folder: RunFolder,
        store: Store,
        evaluator: Evaluator,
        observer: Observer,
    ) -> None:
        self._config, self._recipe, self._model, self._dense = config, recipe, model, dense
        self._gateway, self._folder, self._store = gateway, folder, store
        self._evaluator, self._observer = evaluator, observer
        known = bool(store.devices())  # when the run was broken off
        self._patience = time.monotonic() + RETURN_SECONDS + config.gone_after if known else 0.0

    def run(self) -> RunSummary:
        """Run every round that is left, write the final weights, and tell the devices that it is over.

        Raises
        ------
        RunError
            When too few devices come, or too few answer however often others are asked, or the loss on held-out data
            is no longer finite. The devices are told then, too.
        """
        self._observer.started(self._config, self._dense)
        rounds = self._store.rounds()
        try:
            for number in range(len(rounds) + 1, self._config.rounds + 1):
                rounds.append(self._run_round(number))
        except RunError:
            self._end()
            raise
        return RunSummary(self._config, self._dense, tuple(rounds), self._end())

    def _end(self) -> Path:
        weights = self._folder.finish(self._model.outcome)
        self._farewell()
        return weights

    def _run_round(self, number: int) -> RoundMetrics:
        started = time.monotonic()
        quorum = math.ceil(self._config.quorum * self._config.clients_per_round)
        current, broken_off = Round(number, self._model.version, quorum), self._store.under_way(number)
        if broken_off is None:
            first = max(self._config.clients_per_round, self._config.min_clients)
            self._wait_for_devices(first if number == 1 else quorum)
        model = self._gateway.open_round(current, self._model.frame())
        begun = 0 if broken_off is None else broken_off.attempt
        for attempt in range(begun, begun + _ATTEMPTS):
            if broken_off is not None and attempt == begun:
                self._take_up(current, broken_off)
            else:
                self._ask(current, model, attempt)
            while (progress := current.progress(time.monotonic(), self._lost(self._config.gone_after))) == "open":
                self._gateway.pump()
            if progress == "complete":
                return self._close(current, started)
            _log.warning("round %d is short of devices (attempt %d)", number, attempt + 1)
        raise RunError(
            f"Round {number} got {len(current.reports)} of the {quorum} updates it needs in {_ATTEMPTS} attempts."
        )

    def _wait_for_devices(self, needed: int, besides: frozenset[str] = frozenset()) -> None:
        until = time.monotonic() + self._config.wait
        while (there := self._gateway.registry.count(besides)) < needed or self._returning():
            if time.monotonic() > until:
                raise RunError(
                    f"Only {there} of {needed} devices were there within {self._config.wait:.0f} s; start more, "
                    "or lower --clients-per-round."
                )
            self._gateway.pump()

    def _returning(self) -> bool:
        """Whether devices that the run knew when it was broken off may still come back: whoever is first is not all."""
        return time.monotonic() < self._patience and self._gateway.registry.missing()

    def _take_up(self, current: Round, broken_off: UnderWay) -> None:
        """Go on with a round that was broken off: its tasks stand, and whoever registers hears of his again."""
        current.tasks |= broken_off.tasks
        for client, judged in broken_off.judged.items():
            current.verdicts[client] = judged.verdict(self._folder.run, current.number)
            path = self._folder.update(current.number, client)
            if judged.code:
                current.excuse(client, f"rejected: {judged.reason}")
            elif self._folder.holds(path, judged.digest):
                current.report(client, Report(path, judged.samples, judged.loss, judged.size))
            else:
                current.excuse(client, "its update was lost with this machine's power")
        held = [task.since for task in broken_off.tasks.values() if task.changes]
        self._gateway.offer_changes(self._model.changes_since(min(held)) or () if held else ())
        self._gateway.rejections.update(broken_off.rejections)
        current.deadline = time.monotonic() + self._config.deadline
        self._observer.round_started(current.number, current.outstanding())

    def _ask(self, current: Round, model: Ref, attempt: int) -> None:
        """Pick as many clients as the round still needs, anyone but those whose part in it is done."""
        if attempt:
            self._wait_for_devices(current.quorum - len(current.reports), besides=current.done())
        for client in current.outstanding():
            current.excuse(client, "late")
        picked = self._gateway.registry.pick(
            self._config.clients_per_round - len(current.reports),
            seed=self._config.seed,
            round=current.number,
            attempt=attempt,
            excluding=current.done(),
        )
        current.deadline = time.monotonic() + self._config.deadline
        tasks = {client: self._task(client, current, model) for client in picked}
        self._store.ask(attempt, tasks)
        self._observer.round_started(current.number, picked)
        for client, task in tasks.items():
            current.excused.pop(client, None)
            current.tasks[client] = task
            self._gateway.ask(client, task)

    def _task(self, client: str, current: Round, model: Ref) -> Task:
        device = self._gateway.registry[client]
        changes: tuple[Ref, ...] | None = None
        if self._recipe.sends_changes:
            changes = self._gateway.offer_changes(self._model.changes_since(device.accepted - 1) or ())
        return make_task(
            self._config,
            self._recipe,
            self._model.layout,
            client=client,
            tier=device.profile.tier,
            round=current.number,
            accepted=device.accepted,
            model=model,
            changes=changes,
        )

    def _close(self, current: Round, started: float) -> RoundMetrics:
        """Aggregate in the order of client ids, whatever the order of arrival; evaluate; keep."""
        for client in current.outstanding():
            current.excuse(client, "lost")
        self._gateway.close_round()
        reports = {client: current.reports[client] for client in sorted(current.reports)}
        train_loss = self._model.aggregate(self._updates(reports))
        score = self._evaluator.score(self._model.outcome, self._recipe.method.model_width)
        metrics = RoundMetrics(
            round=current.number,
            seconds=time.monotonic() - started,
            accuracy=score.accuracy,
            loss=score.loss,
            train_loss=train_loss,
            uplink={client: report.size for client, report in reports.items()},
            downlink=dict(sorted(self._gateway.sent.items())),
            excused=dict(current.excused),
            rejections=dict(self._gateway.rejections),
        )
        self._gateway.rejections.clear()
        self._gateway.sent.clear()
        self._folder.keep_model(current.number, self._model.weights, self._model.learned())
        self._store.close_round(metrics)
        self._folder.close_round(metrics)
        self._observer.round_closed(metrics)
        return metrics

    def _updates(self, reports: dict[str, Report]) -> Iterator[tuple[int, Frame]]:
        """Each accepted update with its device's tier, one in memory at a time."""
        for client, report in reports.items():
            tier = self._gateway.registry[client].profile.tier
            yield tier, decode_frame(report.path.read_bytes(), self._model.layout, self._recipe.shared())

    def _farewell(self) -> None:
        """Tell the devices for a while, and longer if one is reconnecting just now: it would wait for ever."""
        shortest, longest = (time.monotonic() + seconds for seconds in _LINGER_SECONDS)
        while time.monotonic() < shortest or (time.monotonic() < longest and self._lost(after=0.0)):
            self._gateway.finish(self._model.version)
            self._gateway.pump()

    def _lost(self, after: float) -> set[str]:
        return self._gateway.registry.lost(time.monotonic(), after)
