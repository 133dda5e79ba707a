"""What a coordinator tells whoever is watching."""

from collections.abc import Mapping, Sequence

from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.wire.messages import Register

__all__ = ["Observer", "Observers"]


class Observer:
    """Watches a run; every method does nothing until overridden."""

    def started(self, config: RunConfig, dense_bytes: int, finished: Sequence[RoundMetrics] = ()) -> None:
        """The run begins, or goes on after the rounds that it has ``finished``.

        ``dense_bytes`` is the size of a frame that drops nothing.
        """

    def begins_with(self, scores: Mapping[str, float], loss: float) -> None:
        """What the bundle's own model scores on the held-out data, before the first round."""

    def registered(self, client: str, profile: Register) -> None:
        """A device is in."""

    def device(self, client: str, status: str) -> None:
        """A device's part in the round changed: training, accepted, rejected, failed, declined, evaluating, evaluated,
        collecting, collected, aggregating, aggregated, gone.
        """

    def rejected(self, client: str, code: str, reason: str, times: int) -> None:
        """Messages or updates were turned away, so many ``times`` since this was told last of client and code.

        ``reason`` is that of the last.
        """

    def round_started(self, number: int, selected: list[str]) -> None:
        """These clients were asked to train."""

    def round_closed(self, metrics: RoundMetrics) -> None:
        """The round is over."""


class Observers(Observer):
    """Several as one, told in their order.

    Parameters
    ----------
    observers
        The others.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def started(self, config: RunConfig, dense_bytes: int, finished: Sequence[RoundMetrics] = ()) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.started(config, dense_bytes, finished)

    def begins_with(self, scores: Mapping[str, float], loss: float) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.begins_with(scores, loss)

    def registered(self, client: str, profile: Register) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.registered(client, profile)

    def device(self, client: str, status: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.device(client, status)

    def rejected(self, client: str, code: str, reason: str, times: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.rejected(client, code, reason, times)

    def round_started(self, number: int, selected: list[str]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.round_started(number, selected)

    def round_closed(self, metrics: RoundMetrics) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.round_closed(metrics)
