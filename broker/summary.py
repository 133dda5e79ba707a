"""What a finished run amounts to: figures and sentences."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from edge_fl.metrics.text import scores_text
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics, TierScore

__all__ = ["RunSummary", "privacy_lines", "size_text", "tier_text"]


@dataclass(frozen=True)
class RunSummary:
    """A finished run.

    ``dense`` is the size of a frame that drops nothing, in bytes, and ``best`` the round whose model the ``weights``
    are (0: the last).
    """

    config: RunConfig
    dense: int
    rounds: tuple[RoundMetrics, ...]
    weights: Path
    best: int = 0

    @property
    def kept(self) -> RoundMetrics:
        """The round whose model the weights are."""
        return self.rounds[(self.best or len(self.rounds)) - 1]

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.weights.parent

    @property
    def scores(self) -> dict[str, float]:
        """The final model's on held-out data, by name; none where there is none."""
        return self.kept.scores

    @property
    def found(self) -> str:
        """The scores for a person, or the last training loss where there are none."""
        return self.kept.found

    @property
    def uplink(self) -> float:
        """Mean bytes of an update: one client, one round."""
        sizes = [size for metrics in self.rounds for size in metrics.uplink.values()]
        return mean(sizes) if sizes else 0.0

    @property
    def _rounds(self) -> str:
        return f"round {self.best}, the best of {len(self.rounds)}," if self.best else f"{len(self.rounds)} rounds"

    def figures(self) -> dict[str, Any]:
        """The summary as plain values."""
        on_devices = {"on_devices": msgspec.to_builtins(self.kept.on_devices)} if self.config.evaluate_on else {}
        return {
            "run": self.config.run,
            "method": self.config.method,
            "rounds": len(self.rounds),
            "scores": self.scores,
            "loss": self.kept.loss,
            "train_loss": self.kept.train_loss,
            **on_devices,
            **({"best_round": self.best} if self.best else {}),
            **self._private,
            "updates_bounded": sum(len(metrics.clipped) for metrics in self.rounds),
            "uplink_bytes": round(self.uplink),
            "dense_bytes": self.dense,
            "uplink_ratio": self.uplink / self.dense,
            "downlink_bytes": sum(sum(metrics.downlink.values()) for metrics in self.rounds),
            "weights": str(self.weights),
        }

    @property
    def _private(self) -> dict[str, Any]:
        """What all rounds cost in privacy, for a script."""
        privacy, spent = self.config.privacy, self.rounds[-1].privacy
        if privacy is None or spent is None:
            return {}
        return {"privacy": {"kind": privacy.kind, "epsilon": spent.epsilon, "delta": privacy.delta}}

    @property
    def _bounded(self) -> list[str]:
        """How many updates counted less than they would have, in a line; none where all counted."""
        shares = [share for metrics in self.rounds for share in metrics.clipped.values()]
        if not shares or self.config.privacy is not None:  # whose clip is part of its promise
            return []
        updates, left_out = sum(len(metrics.uplink) for metrics in self.rounds), shares.count(0)
        return [
            f"of {updates} updates {len(shares) - left_out} were scaled down and {left_out} left out, as far larger "
            "than the others (--norm-bound, --rollback)"
        ]

    def lines(self) -> list[str]:
        """The summary for a person."""
        return [
            f"{self.found} after {self._rounds} of {self.config.method}",
            *(tier_text(tier, score) for tier, score in self.kept.on_devices.items()),
            *privacy_lines(self.config, self.rounds[-1]),
            *self._bounded,
            f"uplink {size_text(self.uplink)} a client and round, {self.uplink / self.dense:.1%} of the "
            f"{size_text(self.dense)} of dense FedAvg (encoded frames)",
            f"weights {self.weights}",
        ]


def privacy_lines(config: RunConfig, last: RoundMetrics) -> list[str]:
    """What all rounds up to ``last`` cost in privacy, for a person: a line, or none."""
    privacy, spent = config.privacy, last.privacy
    if privacy is None or spent is None:
        return []
    if spent.epsilon is None:
        return ["updates were clipped and had no noise: no privacy is promised"]
    return [
        f"{privacy.kind} differential privacy: {spent.text} at delta {privacy.delta:g}, noise {privacy.noise:.3g}"
    ]


def tier_text(tier: int, score: TierScore) -> str:
    """What a tier's devices found, for a person."""
    return (
        f"on devices of tier {tier}: {scores_text(score.scores)}, loss {score.loss:.4f} at width "
        f"{score.width / 1000:g} ({score.samples} samples of {score.clients} device{'s' * (score.clients > 1)})"
    )


def size_text(size: float) -> str:
    """Bytes for people, in decimal units."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
