"""Buffered asynchronous rounds (FedBuff, Nguyen et al. 2022): whoever is slow delays nobody, and still counts."""

from collections import Counter
from dataclasses import replace

from broker.client_selection import ClientSelection
from broker.pacing import ATTEMPTS, LATE, LOST, Ask, Decision, Wait
from broker.registry import Registry
from broker.rounds import Round
from broker.store import UnderWay
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig

__all__ = ["Buffered", "check_buffered"]


class Buffered:
    """Keeps ``clients_per_round`` clients training; a round is closed as soon as ``buffer`` updates were taken in it.

    Whoever still trains goes on into the rounds to come. Its update counts in the one in which it arrives, the less the
    more rounds it is late (:class:`broker.round_sum.RoundSum`). A client trains one task at a time, and gives a
    round one update at the most. Who gives which depends on time: of a buffered run no two are alike, bit for bit.

    One that is silent for ``gone_after`` seconds, or has not answered for ``deadline`` seconds, leaves its place to
    another, and is asked again where nobody else is left. A coordinator that is killed forgets tasks of earlier rounds
    that were not answered. The models that clients still train are held in memory, one of each round.

    Parameters
    ----------
    config, selection
        As :class:`~broker.pacing.Synchronous` takes them.
    flying
        The round before, whose clients may still train, of a run that goes on and knows of them.
    """

    carries = True

    def __init__(self, config: RunConfig, selection: ClientSelection, flying: Round | None = None) -> None:
        self.quorum = config.buffer
        self._config, self._selection = config, selection
        self._flying = flying or Round(0, 0, 0, 0.0)
        self._begun = 0.0
        self._busy: float | None = None  # when somebody was last awaited; None before the first look
        self._filled = False  # just now: others are asked once what has come meanwhile is taken in
        self._times = Counter[str]()  # how often this round asked each client

    def needed(self, number: int) -> int:
        """As many as the first round asks; later ones take who comes."""
        return 0 if number > 1 else max(self._config.clients_per_round, self._config.min_clients)

    def begin(self, current: Round, broken_off: UnderWay | None, now: float) -> UnderWay | None:
        """Take over who still trains; tasks of earlier rounds do not outlive a kill, as their models are gone."""
        flying, self._begun, self._busy, self._filled = self._flying, now, None, False
        self._times.clear()
        for client in flying.outstanding():
            part = flying.parts[client]
            current.ask(client, part.task, now if part.asked_at is None else part.asked_at)
        if broken_off is None:
            return None
        standing = {
            client: task
            for client, task in broken_off.tasks.items()
            if task.round == current.number or client in broken_off.judged
        }
        return replace(broken_off, tasks=standing)

    def decide(self, current: Round, there: Registry, now: float) -> Decision:
        """Close with a full buffer; ask others for free places; else wait, but not for ever for nobody."""
        if len(current.reports) >= current.quorum:
            return "close"
        if self._filled:
            self._filled = False
        else:
            self._give_up(current, there, now)
            if picked := self._fill(current, there, now):
                self._filled = True
                return Ask(picked, attempt=0)
        if self._busy is None or current.outstanding():
            self._busy = now
        elif now - self._busy > self._config.wait:
            raise RunError(
                f"Round {current.number} has {len(current.reports)} of the {current.quorum} updates it needs, and for "
                f"{self._config.wait:.0f} s there was nobody to ask: start more devices, or lower --buffer."
            )
        return Wait(self._next(current, there, now))

    def _next(self, current: Round, there: Registry, now: float) -> float:
        """When somebody is late or lost, rested, or was missed for too long."""
        awaited, deadline = current.outstanding(), self._config.deadline
        times = [self._asked_at(current, client) + deadline for client in awaited]
        times += there.losses(awaited, self._config.gone_after, now)
        times += [part.rests_until for part in current.parts.values() if part.rests_until > now]
        if not awaited and self._busy is not None:
            times.append(self._busy + self._config.wait)
        return min(times)

    def _give_up(self, current: Round, there: Registry, now: float) -> None:
        late, lost = now - self._config.deadline, there.lost(now, self._config.gone_after)
        for client in current.outstanding():
            if client in lost:
                current.excuse(client, LOST)
            elif self._asked_at(current, client) < late:
                current.excuse(client, LATE)

    def _asked_at(self, current: Round, client: str) -> float:
        at = current.parts[client].asked_at
        return self._begun if at is None else at

    def _fill(self, current: Round, there: Registry, now: float) -> list[str]:
        """Whom to ask for free places: those who failed again, where nobody else is left."""
        free = self._config.clients_per_round - len(current.outstanding())
        if free <= 0:
            return []
        done, times = current.unavailable(now), self._times
        idle = [client for client in there.present() if client not in done and not current.awaits(client)]
        pool = [c for c in idle if c not in current.parts] or [c for c in idle if times[c] < ATTEMPTS]
        if not pool:
            return []
        least = current.quorum - len(current.reports) - len(current.outstanding())
        picked = self._selection.pick(pool, free, round=current.number, attempt=times.total(), least=least)
        times.update(picked)
        for client in picked:
            if client in current.parts:
                current.parts[client].asked_at = None  # its time begins anew
        return picked

    def took(self, current: Round, there: Registry, now: float) -> dict[str, float]:
        """Those who are awaited go on, and have taken no time yet."""
        del there
        self._flying = current
        return {client: seconds for client, seconds in current.took(now).items() if not current.awaits(client)}


def check_buffered(recipe: Recipe) -> None:
    """Refuse what takes all devices to know of every round: ConfigError."""
    if recipe.compressor is not None and (recipe.sends_changes or recipe.shares):
        raise ConfigError(
            f"'{recipe.compressor.name}' tells devices something in every round that those of a buffered run may "
            "miss; choose another compressor, or leave --buffer out."
        )
