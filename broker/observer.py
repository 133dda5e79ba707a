"""What a coordinator tells whoever is watching."""

from broker.config import RunConfig
from broker.run_folder import RoundMetrics
from edge_fl.wire.messages import Register

__all__ = ["Observer"]


class Observer:
    """Watches a run; every method does nothing until overridden."""

    def started(self, config: RunConfig, dense_bytes: int) -> None:
        """The run begins; ``dense_bytes`` is the size of a frame that drops nothing."""

    def registered(self, client: str, profile: Register) -> None:
        """A device is in."""

    def device(self, client: str, status: str) -> None:
        """A device's part in the round changed: asked, accepted, rejected, failed, gone."""

    def rejected(self, client: str, code: str, reason: str) -> None:
        """A message or an update was turned away."""

    def round_started(self, number: int, selected: list[str]) -> None:
        """These clients were asked to train."""

    def round_closed(self, metrics: RoundMetrics) -> None:
        """The round is over."""
