"""What a finished run amounts to: figures, sentences and a picture."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics, TierScore

__all__ = ["RunSummary", "draw", "size_text", "tier_text"]

_LABELS = 40


@dataclass(frozen=True)
class RunSummary:
    """A finished run. ``dense`` is the size of a frame that drops nothing, in bytes."""

    config: RunConfig
    dense: int
    rounds: tuple[RoundMetrics, ...]
    weights: Path

    @property
    def plot(self) -> Path:
        """Where :func:`draw` puts the picture."""
        return self.weights.with_name("plot.png")

    @property
    def accuracy(self) -> float:
        """Accuracy of the final model (a fraction), top-1 or as the data set counts it."""
        last = self.rounds[-1].accuracy
        assert last is not None  # the model is evaluated after the last round
        return last

    @property
    def uplink(self) -> float:
        """Mean bytes of an update: one client, one round."""
        return mean(size for metrics in self.rounds for size in metrics.uplink.values())

    def figures(self) -> dict[str, Any]:
        """The summary as plain values."""
        on_devices = (
            {"on_devices": msgspec.to_builtins(self.rounds[-1].on_devices)} if self.config.evaluate_on else {}
        )
        return {
            "run": self.config.run,
            "method": self.config.method,
            "rounds": len(self.rounds),
            "accuracy": self.accuracy,
            **on_devices,
            "uplink_bytes": round(self.uplink),
            "dense_bytes": self.dense,
            "uplink_ratio": self.uplink / self.dense,
            "downlink_bytes": sum(sum(metrics.downlink.values()) for metrics in self.rounds),
            "weights": str(self.weights),
        }

    def lines(self) -> list[str]:
        """The summary for a person."""
        return [
            f"accuracy {self.accuracy:.1%} after {len(self.rounds)} rounds of {self.config.method}",
            *(tier_text(tier, score) for tier, score in self.rounds[-1].on_devices.items()),
            f"uplink {size_text(self.uplink)} a client and round, {self.uplink / self.dense:.1%} of the "
            f"{size_text(self.dense)} of dense FedAvg (encoded frames)",
            f"weights {self.weights}",
            f"plot {self.plot}",
        ]


def tier_text(tier: int, score: TierScore) -> str:
    """What a tier's devices found, for a person."""
    return (
        f"on devices of tier {tier}: accuracy {score.accuracy:.1%}, loss {score.loss:.4f} at width "
        f"{score.width / 1000:g} ({score.samples} samples of {score.clients} device{'s' * (score.clients > 1)})"
    )


def size_text(size: float) -> str:
    """Bytes for people, in decimal units."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def draw(summary: RunSummary) -> None:
    """Plot accuracy by round, and each client's mean update beside a dense one, to ``summary.plot`` (PNG)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    clients = sorted({client for metrics in summary.rounds for client in metrics.uplink})
    sizes = [mean(m.uplink[c] for m in summary.rounds if c in m.uplink) / 1000 for c in clients]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    figure.suptitle(f"{summary.config.method}: {summary.accuracy:.1%} after {len(summary.rounds)} rounds")
    scored = [
        (metrics.round, 100 * metrics.accuracy) for metrics in summary.rounds if metrics.accuracy is not None
    ]
    left.plot(*zip(*scored, strict=True), marker="o", markersize=3)
    left.set(xlabel="round", ylabel="held-out accuracy (%)")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.grid(alpha=0.3)
    right.stairs(sizes, range(len(sizes) + 1), orientation="horizontal", fill=True, color="tab:green")
    few = clients if len(clients) <= _LABELS else []  # a thousand take a quarter of a minute to place
    right.set_yticks([place + 0.5 for place in range(len(few))], few)
    right.axvline(summary.dense / 1000, color="tab:red", linestyle="--", label="dense FedAvg update")
    right.set(xlabel="uplink a round (kB, encoded frames)", xlim=(0, summary.dense / 1000 * 1.15))
    right.invert_yaxis()
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.savefig(summary.plot, dpi=120)
    plt.close(figure)
