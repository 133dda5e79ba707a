"""``edge_fl.Device``: an agent to embed in a program."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_fl.agent.agent import Agent, AgentSettings
from edge_fl.data.given import samples_of
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import DataSource, open_source
from edge_fl.transport.connection import BrokerAddress

__all__ = ["Device"]


class _Held(DataSource):
    """Samples that are there already."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def samples(self) -> Samples:
        """Themselves."""
        return self._samples


class Device:
    """One device of a fleet, in this process.

    It connects and registers in :meth:`run`, trains what the coordinator asks, and uploads the rows that were kept.
    It keeps what it must remember in its state folder, so that it may be killed at any point. With ``once`` it ends
    with the run, otherwise it serves run after run.

    Parameters
    ----------
    broker
        ``mqtt://host:port``.
    data
        Its own data: a spec such as ``csv:readings.csv?label=state``, a :class:`DataSource`, which is asked anew for
        each task, or whatever else :func:`edge_fl.data.given.samples_of` takes.
    id
        Its name in the fleet.
    state
        The folder of its state; None for ``~/.local/state/edge-fl/ID``.
    consent
        Called before anything is trained; raises DeclinedError where the device would rather not.
    settings
        Further fields of :class:`edge_fl.agent.agent.AgentSettings`: runtime, tier, threads, test_share, fleet ...

    Raises
    ------
    EdgeFLError
        As :class:`edge_fl.agent.agent.Agent`.
    """

    def __init__(
        self,
        broker: str,
        data: Any,
        *,
        id: str,
        state: str | Path | None = None,
        once: bool = False,
        consent: Callable[[], None] = lambda: None,
        **settings: Any,
    ) -> None:
        folder = Path.home() / ".local/state/edge-fl" / id if state is None else Path(state)
        own = AgentSettings(broker=BrokerAddress.parse(broker), client=id, state=folder, once=once, **settings)
        self._agent = Agent(own, _source(data), consent=consent)

    def run(self) -> None:
        """Serve until the run ends (``once``) or for ever; raises as :meth:`edge_fl.agent.agent.Agent.run`."""
        self._agent.run()


def _source(data: Any) -> DataSource:
    if isinstance(data, DataSource):
        return data
    return open_source(str(data)) if isinstance(data, str | Path) else _Held(samples_of(data))
