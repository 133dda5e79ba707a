"""The picture of a run: its score, loss and epsilon by round, bytes of updates by tier, and time of rounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_fl.metrics.text import is_percent
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["draw_run"]


def draw_run(rounds: Sequence[RoundMetrics], path: Path, *, title: str, dense: int | None) -> None:
    """Draw a run to ``path`` (PNG, SVG or PDF, as its name ends).

    Parameters
    ----------
    rounds
        All that are finished.
    dense
        Bytes of an update that drops nothing; None where nobody knows.
    """
    from matplotlib.figure import Figure  # pyplot takes as long again to import

    figure = Figure(figsize=(16, 3.8), layout="constrained")
    score, loss, size, time = figure.subplots(1, 4)
    figure.suptitle(title)
    _draw_scores(score, rounds)
    _draw_loss(loss, rounds)
    _draw_epsilon(loss, rounds)
    _draw_sizes(size, rounds, dense)
    time.bar([metrics.round for metrics in rounds], [metrics.seconds for metrics in rounds], color="tab:gray")
    time.set(title="Time", xlabel="round", ylabel="seconds a round", ylim=(0, None))
    for panel in (score, loss, time):
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _draw_scores(panel: Any, rounds: Sequence[RoundMetrics]) -> None:
    """Shares of 1 in percent on the left axis, all others on the right one."""
    names = list(dict.fromkeys(name for metrics in rounds for name in metrics.scores))
    shares = [name for name in names if is_percent(name)]
    others = panel.twinx() if shares and len(shares) < len(names) else panel
    for number, name in enumerate(names):
        scored = [(metrics.round, metrics.scores[name]) for metrics in rounds if name in metrics.scores]
        factor, axis = (100, panel) if name in shares else (1, others)
        axis.plot(
            [at for at, _ in scored],
            [factor * value for _, value in scored],
            marker="o",
            markersize=3,
            color=f"C{number}",
            label=name,
        )
    panel.set(title="Scores on held-out data", xlabel="round", ylabel="%" if shares else "score")
    if others is not panel:
        others.set_ylabel("score")
    if names:
        lines = [line for axis in dict.fromkeys((panel, others)) for line in axis.get_lines()]
        panel.legend(lines, [line.get_label() for line in lines], frameon=False)
    else:
        panel.text(0.5, 0.5, "no test data", ha="center", va="center", transform=panel.transAxes)


def _draw_loss(panel: Any, rounds: Sequence[RoundMetrics]) -> None:
    trained = [(metrics.round, metrics.train_loss) for metrics in rounds if metrics.train_loss is not None]
    if trained:
        panel.plot(*zip(*trained, strict=True), label="training")
    held_out = [(metrics.round, metrics.loss) for metrics in rounds if metrics.loss is not None]
    if held_out:
        panel.plot(*zip(*held_out, strict=True), marker="o", markersize=3, label="held-out")
    panel.set(title="Loss", xlabel="round", ylabel="mean loss")
    if trained or held_out:
        panel.legend(frameon=False)


def _draw_epsilon(panel: Any, rounds: Sequence[RoundMetrics]) -> None:
    """Beside the losses, on an axis of its own: what they cost in privacy."""
    spent = [
        (m.round, m.privacy.epsilon) for m in rounds if m.privacy is not None and m.privacy.epsilon is not None
    ]
    if spent:
        axis = panel.twinx()
        axis.plot(*zip(*spent, strict=True), color="tab:red", linestyle="--")
        axis.set(ylabel="epsilon (dashed)", ylim=(0, None))
        axis.yaxis.label.set_color("tab:red")


def _draw_sizes(panel: Any, rounds: Sequence[RoundMetrics], dense: int | None) -> None:
    """A box a tier: median, quartiles and extremes of its clients' updates."""
    sizes: dict[int, list[float]] = {}
    for metrics in rounds:
        for client, size in metrics.uplink.items():
            sizes.setdefault(metrics.tiers.get(client, 0), []).append(size / 1000)
    tiers = sorted(sizes)
    if not tiers:  # of a private run that drew nobody
        panel.text(0.5, 0.5, "no updates", ha="center", va="center", transform=panel.transAxes)
        return
    panel.boxplot([sizes[tier] for tier in tiers], whis=(0, 100), tick_labels=[f"tier {tier}" for tier in tiers])
    panel.set(title="Bytes of an update", ylabel="kB, encoded frames", ylim=(0, None))
    if dense is not None:
        panel.axhline(dense / 1000, color="tab:red", linestyle="--", label="dense FedAvg update")
        panel.set(ylim=(0, dense / 1000 * 1.15))
        panel.legend(frameon=False)
