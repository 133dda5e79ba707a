"""The clients of a simulation: which samples each has, and what its agent would say of itself."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from device_sim.simulation.settings import Population
from edge_fl import __version__
from edge_fl.data.held_out import held_out
from edge_fl.data.partition import partition
from edge_fl.data.registry import Samples
from edge_fl.wire.messages import PROTOCOL, Measured, Register

__all__ = ["Clients"]


class Clients:
    """``client-0`` ..., each with a part of ``samples``; a share of each part is held out of training.

    Parameters
    ----------
    samples
        Those of all clients.
    population
        How they are cut.
    runtime
        What every client trains in.

    Raises
    ------
    ConfigError, DataError
        When they cannot be cut so.
    """

    def __init__(self, samples: Samples, population: Population, runtime: str) -> None:
        self._samples, self._runtime, self._population = samples, runtime, population
        parts = partition(samples, population.clients, population.kind)
        self._train = {f"client-{i}": part for i, part in enumerate(parts)}
        self._test: dict[str, NDArray[np.int64]] = {}
        if population.test_share:
            for client, part in self._train.items():
                held = held_out(len(part), population.test_share, client)
                self._train[client], self._test[client] = part[~held], part[held]
        self._number = {client: i for i, client in enumerate(self._train)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._train)

    def train(self, client: str) -> Samples:
        """What it trains on."""
        return self._samples.take(self._train[client])

    def test(self, client: str) -> Samples:
        """What it only evaluates models on."""
        return self._samples.take(self._test[client])

    def tier(self, client: str) -> int:
        """The tier of its hardware."""
        return self._population.tier(self._number[client])

    def profile(self, client: str, measured: Measured | None = None) -> Register:
        """What it registers with."""
        return Register(
            protocol=PROTOCOL,
            agent=__version__,
            runtime=self._runtime,
            samples=len(self._train[client]),
            tier=self.tier(client),
            test_samples=len(self._test.get(client, ())),
            measured=measured,
        )
