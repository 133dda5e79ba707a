"""Buffered asynchronous rounds (FedBuff, Nguyen et al. 2022): whoever is slow delays nobody, and still counts."""

import time
from collections import Counter
from dataclasses import replace

from broker.coordinator import ATTEMPTS, LATE, LOST, Coordinator
from broker.rounds import Round
from broker.store import UnderWay
from edge_fl.compressors.base import Compressor
from edge_fl.core.content import Ref
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["BufferedCoordinator", "check_buffered"]


class BufferedCoordinator(Coordinator):
    """Keeps ``clients_per_round`` clients training; a round is closed as soon as ``buffer`` updates were taken in it.

    Whoever still trains goes on into the rounds to come. Its update counts in the one in which it arrives, the less the
    more rounds it is late (:meth:`broker.model.GlobalModel.aggregate`). A client trains one task at a time, and gives a
    round one update at the most. Who gives which depends on time: of a buffered run no two are alike, bit for bit.

    One that is silent for ``gone_after`` seconds, or has not answered for ``deadline`` seconds, leaves its place to
    another, and is asked again where nobody else is left. A coordinator that is killed forgets tasks of earlier rounds
    that were not answered. The models that clients still train are held in memory, one of each round.
    """

    _flying = Round(0, 0, 0, 0.0)  # the round before, whose clients may still train

    def _run_round(self, number: int) -> RoundMetrics:
        started = time.monotonic()
        current = Round(number, self._model.version, self._config.buffer, self._model.reach)
        broken_off = self._store.under_way(number)
        for client in self._flying.outstanding():
            current.tasks[client], current.tiers[client] = self._flying.tasks[client], self._flying.tiers[client]
            current.asked_at[client] = self._flying.asked_at.get(client, started)
        model = self._gateway.open_round(current, self._model.frame())
        if broken_off is not None:
            self._take_up(current, broken_off)
        elif number == 1:
            self._wait_for_devices(max(self._config.clients_per_round, self._config.min_clients))
        self._store.ask(0, current.tasks, current.tiers)  # of those who still train, once more
        times, busy = Counter[str](), time.monotonic()
        while len(current.reports) < current.quorum:
            self._give_up(current, started)
            self._fill(current, model, times)
            if current.outstanding():
                busy = time.monotonic()
            elif time.monotonic() - busy > self._config.wait:
                raise RunError(
                    f"Round {number} has {len(current.reports)} of the {current.quorum} updates it needs, and for "
                    f"{self._config.wait:.0f} s there was nobody to ask: start more devices, or lower --buffer."
                )
            self._gateway.pump()
        return self._close(current, started)

    def _take_up(self, current: Round, broken_off: UnderWay) -> None:
        """Without the tasks of earlier rounds, whose models are gone."""
        standing = {
            client: task
            for client, task in broken_off.tasks.items()
            if task.round == current.number or client in broken_off.judged
        }
        super()._take_up(current, replace(broken_off, tasks=standing))

    def _give_up(self, current: Round, started: float) -> None:
        late, lost = time.monotonic() - self._config.deadline, self._lost(self._config.gone_after)
        for client in current.outstanding():
            if client in lost:
                current.excuse(client, LOST)
            elif current.asked_at.get(client, started) < late:
                current.excuse(client, LATE)

    def _fill(self, current: Round, model: Ref, times: Counter[str]) -> None:
        """Ask others for as long as there are free places; those who failed again, where nobody else is left."""
        free = self._config.clients_per_round - len(current.outstanding())
        if free <= 0:
            return
        there, done = self._gateway.registry.present(), current.unavailable(time.monotonic())
        idle = [client for client in there if client not in done and not current.awaits(client)]
        pool = [c for c in idle if c not in current.tasks] or [c for c in idle if times[c] < ATTEMPTS]
        if pool:
            picked = self._selection.pick(pool, free, round=current.number, attempt=sum(times.values()))
            times.update(picked)
            for client in picked:
                current.asked_at.pop(client, None)
            self._hand_out(current, picked, model, attempt=0)

    def _part(self, current: Round) -> dict[str, float]:
        """Those who are awaited go on, and have taken no time yet."""
        self._flying = current
        took = current.took(time.monotonic()).items()
        return {client: seconds for client, seconds in took if not current.awaits(client)}


def check_buffered(recipe: Recipe) -> None:
    """Refuse what takes all devices to know of every round: ConfigError."""
    compressor = recipe.compressor
    if compressor is not None and (recipe.sends_changes or type(compressor).shared is not Compressor.shared):
        raise ConfigError(
            f"'{compressor.name}' tells devices something in every round that those of a buffered run may miss; choose "
            "another compressor, or leave --buffer out."
        )
