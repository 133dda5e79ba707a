"""The virtual time of a finished simulation: its traffic, and local training timed here."""

from collections.abc import Callable

from broker.summary import RunSummary
from device_sim.simulation.links import find_link
from device_sim.simulation.local_time import Local, step_seconds
from device_sim.simulation.simulate import Simulation
from device_sim.simulation.time_model import TIER_SLOWDOWNS, Clock, traffic_of
from edge_fl.core.errors import ConfigError

__all__ = ["virtual_clock"]


def virtual_clock(link: str, slowdowns: str | None) -> Callable[[Simulation, RunSummary], float]:
    """What tells the seconds of a finished run.

    Parameters
    ----------
    link
        A name, or Mbps down and up, for :func:`device_sim.simulation.links.find_link`.
    slowdowns
        One a tier, with commas between; None for :data:`device_sim.simulation.time_model.TIER_SLOWDOWNS`.

    Raises
    ------
    ConfigError
        When either makes no sense: at once, before anything is run.
    """
    try:
        factors = TIER_SLOWDOWNS if slowdowns is None else tuple(map(float, slowdowns.split(",")))
    except ValueError as error:
        raise ConfigError(f"--slowdown takes factors such as 1 or 1,2,4, not '{slowdowns}'.") from error
    untimed = Clock([find_link(link)], (0.0,), 1, factors)

    def seconds(simulation: Simulation, summary: RunSummary) -> float:
        config, population = simulation.settings.config, simulation.settings.population
        local = Local(simulation.bundle, config, population, simulation.settings.trainer.programs)
        (steps,) = step_seconds([local])
        clock = Clock(untimed.links, steps, config.local_steps, untimed.slowdowns)
        return sum(clock.round(traffic_of(metrics, population.tier)) for metrics in summary.rounds)

    return seconds
