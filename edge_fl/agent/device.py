"""``edge_fl.Device``: an agent to embed in a program."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_fl.agent.agent import Agent, AgentSettings
from edge_fl.agent.kept_model import Predictor, model_version
from edge_fl.agent.opening import in_process_of_its_own, in_this_process
from edge_fl.agent.state import state_home
from edge_fl.data.given import samples_of
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import DataSource, open_source
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress

__all__ = ["Device"]


class _Held(DataSource):
    """Samples that are there already."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def samples(self) -> Samples:
        """Themselves."""
        return self._samples


class Device:
    """One device of a fleet, in this process; its bundles' programs have another.

    It connects and registers in :meth:`run`, trains what the coordinator asks, and uploads the rows that were kept.
    It keeps what it must remember in its state folder, so that it may be killed at any point. With ``once`` it ends
    with the run, otherwise it serves run after run.

    Parameters
    ----------
    broker
        ``mqtts://host:port``, ``mqtt://`` or ``wss://``.
    data
        Its own data: a spec such as ``csv:readings.csv?label=state``, a :class:`DataSource`, which is asked anew for
        each task, or whatever else :func:`edge_fl.data.given.samples_of` takes.
    id
        Its name in the fleet.
    state
        The folder of its state; None for ``~/.local/state/edge-fl/ID``, or as XDG_STATE_HOME has it.
    access
        Certificates, user and password for the broker.
    keep_model
        Whether to keep the final model of each run, for :meth:`predict`.
    in_process
        Whether a bundle's programs run in this process, rather than in a confined one of their own: only for a
        coordinator that is trusted.
    consent
        Called before anything is trained; raises DeclinedError where the device would rather not.
    runtime
        What trains the bundle's programs, as ``edge-fl device --runtime`` names it.
    settings
        Further fields of :class:`edge_fl.agent.agent.AgentSettings`: tier, threads, test_share, fleet ...

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
        runtime: str = "onnx",
        state: str | Path | None = None,
        access: Access | None = None,
        once: bool = False,
        keep_model: bool = False,
        in_process: bool = False,
        consent: Callable[[], None] = lambda: None,
        **settings: Any,
    ) -> None:
        self._settings = AgentSettings(
            broker=BrokerAddress.parse(broker, access),
            client=id,
            state=state_home() / id if state is None else Path(state),
            once=once,
            keep_model=keep_model,
            runtime=runtime.replace("-", "_"),
            **settings,
        )
        self._predictor: tuple[int, Predictor] | None = None
        self._lock = threading.RLock()
        self._opener = in_this_process() if in_process else in_process_of_its_own
        self._agent = Agent(self._settings, _source(data), open=self._opener, consent=consent)

    def run(self) -> None:
        """Serve until the run ends (``once``) or for ever; raises as :meth:`edge_fl.agent.agent.Agent.run`."""
        self._agent.run()

    def predict(self, x: ArrayLike | Mapping[str, ArrayLike] | Sequence[str]) -> NDArray[np.float32]:
        """Outputs ``[N, ...]`` of the final model that was kept last, at this device's width.

        Parameters
        ----------
        x
            Inputs ``[N, ...]``, several such by name, or ``N`` texts where the bundle has a tokenizer.

        Raises
        ------
        StateError
            When none was kept: the device runs without ``keep_model``, or no run has ended.
        DataError
            When ``x`` does not fit the model.
        """
        with self._lock:
            version = model_version(self._settings.state)
            if self._predictor is None or self._predictor[0] != version:
                self.close()
                self._predictor = version, Predictor(self._settings, open=self._opener)
            return self._predictor[1](x)

    def close(self) -> None:
        """End the process that predicts, if there is one; :meth:`predict` starts another."""
        with self._lock:
            if self._predictor is not None:
                self._predictor[1].close()
                self._predictor = None


def _source(data: Any) -> DataSource:
    if isinstance(data, DataSource):
        return data
    return open_source(str(data)) if isinstance(data, str | Path) else _Held(samples_of(data))
