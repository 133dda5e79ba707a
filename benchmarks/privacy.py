"""Accuracy against epsilon: DP-FedAvg on whole updates and on sub-models that the server draws."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.figures import by_dataset, deviation, difference, finals, notes_of, spread
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill
from benchmarks.plots import panels
from benchmarks.runs import Run
from broker.accountant import settled
from edge_fl.measure.table import Picture, Result
from edge_fl.runs.privacy import Privacy

__all__ = ["CLIP", "DELTA", "EPSILONS", "METHODS", "bench_privacy"]

METHODS = ("fedavg", "feddrop")
EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-4
"""A tenth of 1 over the clients of the page."""
CLIP = 0.5


def bench_privacy(
    choice: Choice,
    how: Filling,
    epsilons: Sequence[float] = EPSILONS,
    *,
    delta: float = DELTA,
    clip: float = CLIP,
) -> Result:
    """Run each method without privacy, clipped without noise, and at each epsilon.

    Raises as :func:`benchmarks.grid.fill` does, and ConfigError where an epsilon takes no noise that can be had.
    """
    clipped = Privacy("central", noise=0.0, delta=delta, clip=clip)
    private = [Privacy("central", epsilon=epsilon, delta=delta, clip=clip) for epsilon in sorted(epsilons)]
    found, missing = fill(
        [
            _entry(choice, dataset, method, privacy)
            for dataset in choice.datasets
            for method in choice.methods or METHODS
            for privacy in (None, clipped, *private)
        ],
        how,
    )
    options = [*(f"--epsilon {epsilon:g}" for epsilon in epsilons), f"--delta {delta:g}", f"--clip {clip:g}"]
    asked = found[0].run.clients_per_round
    return Result(
        title="Differential privacy",
        command=" ".join([choice.command("privacy"), *options]),
        about=(
            f"Accuracy against epsilon of DP-FedAvg at delta {delta:g}: each update has a norm of {clip:g} at most, "
            "and the sum gets Gaussian noise. dp-accounting counts; neighbours differ by one client. Each of "
            f"{found[0].run.clients} clients takes part with chance {asked / found[0].run.clients:g} in each of "
            f"{choice.rounds} rounds: about {asked} a round, {found[0].run.local_steps} steps of a batch "
            f"of {found[0].run.batch}. "
            "`clip alone` has no noise and promises nothing: what it loses, the clip and the fixed number of clients "
            "cost. Few clients a round cost much noise: it is shared by all of them. Lost is against the same method "
            "and seeds without privacy."
        ),
        rows=[
            {
                "data set": f.run.dataset,
                **f.entry.columns,
                "noise (clips)": _noise(f.run),
                "accuracy (%)": spread(finals(f)) or "failed",
                "lost (points)": _lost(f, found),
                "seeds": len(f.records),
            }
            for f in found
        ],
        notes=notes_of(found, missing),
        pictures=[
            Picture(dataset, f"Accuracy on {dataset} against epsilon", partial(_draw, dataset, delta, group))
            for dataset, group in by_dataset(found).items()
        ],
    )


def _entry(choice: Choice, dataset: str, method: str, privacy: Privacy | None) -> Entry:
    told = "none" if privacy is None else f"{privacy.epsilon:g}" if privacy.epsilon else "clip alone"
    columns: dict[str, str | float] = {"method": method, "epsilon": told}
    last: dict[str, Any] = {
        "evaluate_every": choice.rounds,
        "privacy": privacy,
    }  # only the last model is looked at
    return entry(choice, dataset, method, columns, **last)


def _noise(run: Run) -> float | str:
    """The deviation of the noise on a sum, in clips."""
    privacy = settled(run.config(), run.clients).privacy
    return "" if privacy is None or not privacy.noise else round(privacy.noise, 2)


def _lost(filled: Filled, found: Sequence[Filled]) -> float | str:
    """By how many points it is below the same method without privacy."""
    for other in found:
        same = (other.run.dataset, other.run.recipe) == (filled.run.dataset, filled.run.recipe)
        if same and other.run.privacy is None:
            apart = difference(other, filled)
            return "" if apart is None else apart
    return ""


def _draw(dataset: str, delta: float, group: Sequence[Filled], path: Path) -> None:
    """A line a method over epsilon, and what it reaches without privacy, dashed."""
    with panels(path, columns=1, title=f"{dataset}, delta {delta:g}") as (panel,):
        for number, method in enumerate(dict.fromkeys(f.run.recipe for f in group)):
            own, colour = [f for f in group if f.run.recipe == method], f"C{number}"
            points = [(f.run.privacy.epsilon, finals(f)) for f in own if f.run.privacy and f.run.privacy.epsilon]
            panel.errorbar(
                [epsilon for epsilon, _ in points],
                [mean(values) for _, values in points],
                [deviation(values) for _, values in points],
                marker="o",
                capsize=3,
                color=colour,
                label=f"{method}, private",
            )
            for f in own:
                if f.run.privacy is None:
                    panel.axhline(mean(finals(f)), linestyle="--", color=colour, label=f"{method}, no privacy")
        panel.set(xlabel=f"epsilon (at delta {delta:g})", ylabel="held-out accuracy (%)", xscale="log")
        epsilons = sorted({f.run.privacy.epsilon for f in group if f.run.privacy and f.run.privacy.epsilon})
        panel.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], minor=False)
        panel.minorticks_off()
