"""Which tier a device is asked to train in: the one it registered with, or the ablest that its own figures allow."""

from collections.abc import Sequence

from broker.tasks import make_task
from edge_fl.core.content import Ref
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.wire.messages import MOST_TIERS, Register, Task

__all__ = ["Tiers", "open_tiers"]

_SHARE = 0.8  # of the deadline that a round is meant to take at the most: the rest is for what nobody foresaw
_NEWEST = 0.5  # weight of the last round in what is expected of the next
_NOTHING = Ref("0" * 64, 0)


class Tiers:
    """Tiers as devices register them.

    Attributes
    ----------
    rehearsals
        Tasks for devices to time before they are ready, one a tier; none where nothing is to be measured.
    """

    rehearsals: tuple[Task, ...] = ()

    def candidates(self, profile: Register) -> Sequence[int]:
        """The tiers that a device may be asked to train in."""
        return (profile.tier,)

    def unfit(self, profile: Register) -> str | None:
        """Why a device with these figures cannot take part, if so."""
        del profile
        return None

    def ready(self, profile: Register) -> bool:
        """Whether enough is known of a device to ask it."""
        del profile
        return True

    def of(self, client: str, profile: Register) -> int:
        """The tier of a device that is ready, in the round to come."""
        del client
        return profile.tier

    def took(self, client: str, profile: Register, tier: int, seconds: float) -> None:
        """Learn that a round took ``seconds`` of a device, or more, from its task to its update."""


class MeasuredTiers(Tiers):
    """The ablest tier whose round a device is expected to finish in time.

    A round is expected to take V steps as the device measured them, and what its last rounds took besides (transfers,
    waiting, a machine that is slower at work than in a rehearsal), the newest counting one half. Where no tier is fast
    enough it is the fastest.

    Parameters
    ----------
    config
        Of the run; its deadline is to be met.
    layout
        The model's.
    """

    def __init__(self, config: RunConfig, layout: Layout) -> None:
        recipe = open_recipe(config.method, config.parameters)  # of its own: a rehearsal teaches it nothing
        if recipe.method.tiers > MOST_TIERS:
            raise ConfigError(
                f"Devices measure {MOST_TIERS} tiers at the most, not {recipe.method.tiers}: name fewer."
            )
        self._config, self._units = config, []
        self._besides: dict[str, float] = {}  # seconds of a client's rounds that are not steps
        tasks = []
        for tier in range(recipe.method.tiers):
            tasks.append(
                make_task(
                    config,
                    recipe,
                    layout,
                    client="",
                    tier=tier,
                    round=1,
                    accepted=0,
                    model=_NOTHING,
                    weights={},
                )
            )
            self._units.append(sum(recipe.method.counts(layout, tier).values()))
        self.rehearsals = tuple(tasks)

    def candidates(self, profile: Register) -> Sequence[int]:
        """All that the method tells apart."""
        del profile
        return range(len(self.rehearsals))

    def unfit(self, profile: Register) -> str | None:
        """Figures of other rehearsals than this run's, or none that worked."""
        if not self.ready(profile):
            return None
        assert profile.measured is not None
        seconds = profile.measured.step_seconds
        if len(seconds) != len(self.rehearsals):
            return f"It measured {len(seconds)} tiers of {len(self.rehearsals)}."
        return "It can train in no tier; its log says why." if all(step is None for step in seconds) else None

    def ready(self, profile: Register) -> bool:
        """Once it has measured, for this run."""
        return profile.measured is not None and profile.measured.run == self._config.run

    def of(self, client: str, profile: Register) -> int:
        """The one that trains most units in time; of several the first."""
        left = _SHARE * self._config.deadline - self._besides.get(client, 0.0)
        steps = self._steps(profile)
        in_time = [tier for tier, seconds in steps.items() if seconds <= left]
        if not in_time:
            return min(steps, key=lambda tier: (steps[tier], tier))
        return max(in_time, key=lambda tier: (self._units[tier], -tier))

    def took(self, client: str, profile: Register, tier: int, seconds: float) -> None:
        """Expect the like of it again."""
        if not self.ready(profile):  # it was started anew since, and has yet to measure
            return
        newest = max(0.0, seconds - self._steps(profile).get(tier, 0.0))
        self._besides[client] = _NEWEST * newest + (1 - _NEWEST) * self._besides.get(client, newest)

    def _steps(self, profile: Register) -> dict[int, float]:
        """Seconds of a round's steps in each tier that the device can do."""
        assert profile.measured is not None  # it is ready
        seconds = enumerate(profile.measured.step_seconds)
        return {tier: self._config.local_steps * step for tier, step in seconds if step is not None}


def open_tiers(config: RunConfig, layout: Layout) -> Tiers:
    """Those that ``config`` asks for."""
    return MeasuredTiers(config, layout) if config.tiers == "auto" else Tiers()
