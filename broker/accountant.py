"""What a run's privacy costs, as the library dp-accounting counts it (Rényi differential privacy)."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from edge_fl.core.errors import ConfigError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runs.privacy import Privacy

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["Accountant", "epsilon_of", "settled"]

_ORDERS = [*(2 + quarter / 4 for quarter in range(36)), *range(11, 65), 80, 96, 128, 192, 256, 384, 512, 1024]
"""Of Rényi divergences, where devices are drawn by chance: the series of orders below 2 does not converge."""
_NOISES = (0.01, 1e5)
"""Of these clips the noise for an epsilon is looked for."""


class Accountant:
    """Counts the rounds of one run.

    It begins with the run's settings, sees every finished round, those of a run that goes on too, and says after each
    what all of them cost. A round counts once closed. One that was broken off gave no model out, and is closed later.

    Parameters
    ----------
    config
        The run's, with ``privacy``.

    Raises
    ------
    ConfigError
        When dp-accounting is not installed.
    """

    def __init__(self, config: RunConfig) -> None:
        assert config.privacy is not None
        self._privacy, self._chance = config.privacy, _chance(config)
        self._rounds = 0
        self._asked: Counter[str] = Counter()
        _library()

    def see(self, metrics: RoundMetrics) -> None:
        """Count a round that is over."""
        self._rounds += 1
        self._asked.update(list(metrics.tiers))

    def with_round(self, clients: Iterable[str]) -> float | None:
        """Epsilon of the rounds seen and of one more, in which ``clients`` were asked; None without noise."""
        if self._privacy.kind == "central":
            return epsilon_of(self._privacy, self._rounds + 1, self._chance)
        asked = self._asked + Counter(list(clients))
        return epsilon_of(self._privacy, max(asked.values(), default=0), 1.0)


def epsilon_of(privacy: Privacy, times: int, chance: float) -> float | None:
    """Epsilon at ``privacy.delta`` of a device that may take part ``times`` times, each time with this ``chance``.

    ``central``: neighbours differ by one device, which is there or adds nothing. A round is the Gaussian mechanism,
    Poisson-sampled where ``chance`` is below 1. ``local``: any two updates of a device are neighbours. They are up to
    two clips apart, so half the noise counts. None without noise.
    """
    if privacy.deviation == 0:
        return None
    if times == 0:
        return 0.0
    # Chance never costs more; with hardly any noise the series of the sampled mechanism does not converge.
    events = {each: _event(privacy, privacy.deviation, times, each) for each in (chance, 1.0)}
    return min(_epsilon(event, privacy.delta, sampled=each < 1) for each, event in events.items())


def settled(config: RunConfig, devices: int | None = None) -> RunConfig:
    """``config`` with the noise that its epsilon takes, and with ``devices`` of the fleet where it names none.

    Raises
    ------
    ConfigError
        When dp-accounting is not installed, or no noise is enough.
    """
    privacy = config.privacy
    if privacy is None:
        return config
    _library()  # before anything is written
    privacy = replace(privacy, devices=privacy.devices or devices)
    if privacy.epsilon is not None:
        noise = _noise_for(replace(config, privacy=privacy), privacy.epsilon)
        privacy = replace(privacy, noise=noise, epsilon=None)
    return replace(config, privacy=privacy)


def _noise_for(config: RunConfig, epsilon: float) -> float:
    """The smallest noise, to within a thousandth, that keeps all rounds within ``epsilon``."""
    privacy, chance = config.privacy, _chance(config)
    assert privacy is not None
    from scipy.optimize import brentq  # which dp-accounting brings

    def beyond(power: float) -> float:
        found = epsilon_of(replace(privacy, noise=math.exp(power), epsilon=None), config.rounds, chance)
        assert found is not None
        return found - epsilon

    least, most = map(math.log, _NOISES)
    if beyond(least) < 0 or beyond(most) > 0:
        raise ConfigError(
            f"No noise from {_NOISES[0]:g} to {_NOISES[1]:g} clips gives an epsilon of {epsilon:g} in "
            f"{config.rounds} rounds: give another --dp-epsilon, or --dp-noise."
        )
    tolerance = 5e-4
    return math.exp(float(brentq(beyond, least, most, xtol=tolerance)) + tolerance)


def _chance(config: RunConfig) -> float:
    """With which chance a round asks a device, where nobody can foretell whom; else 1."""
    assert config.privacy is not None
    return config.privacy.chance(config.clients_per_round) if config.by_chance else 1.0


def _event(privacy: Privacy, noise: float, times: int, chance: float) -> "DpEvent":
    library = _library()
    gaussian = library.GaussianDpEvent(noise if privacy.kind == "central" else noise / 2)
    once = gaussian if chance == 1 else library.PoissonSampledDpEvent(chance, gaussian)
    return library.SelfComposedDpEvent(once, times)


def _epsilon(event: "DpEvent", delta: float, *, sampled: bool) -> float:
    with _quiet():
        return float(_rdp(sampled=sampled).compose(event).get_epsilon(delta))


def _rdp(*, sampled: bool) -> Any:
    library = _library()
    from dp_accounting.rdp import RdpAccountant

    neighbours = library.NeighboringRelation.ADD_OR_REMOVE_ONE
    return RdpAccountant(orders=_ORDERS if sampled else None, neighboring_relation=neighbours)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ConfigError(
            "Privacy is counted by dp-accounting, which is missing: pip install 'edge-fl[privacy]'."
        ) from error
    return dp_accounting


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warnings of orders that it leaves out, which only makes its bound looser."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
