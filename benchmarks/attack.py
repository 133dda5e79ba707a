"""Hostile clients against each defence: accuracy by attack, share of attackers and rule."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.figures import by_dataset, difference, finals, notes_of, spread
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill
from benchmarks.hostile import ATTACKS
from benchmarks.paper_tables import setting_text
from benchmarks.plots import panels
from edge_fl.aggregation.robust.base import robust_names
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Picture, Result

__all__ = ["DEFENCES", "METHODS", "SHARES", "bench_attack"]

METHODS = ("fedavg", "fedbiad")
SHARES = (0.1, 0.2, 0.4)
DEFENCES = ("none", "default", *robust_names())
"""``default`` bounds samples and norms as `edge-fl serve` does; a rule has these bounds, too."""

_BOUNDS: dict[str, Any] = {"samples_bound": 10.0, "norm_bound": 2.0}
_WITHOUT_RULE = ("none", "default")


class _Case(NamedTuple):
    attack: str
    share: float
    defence: str
    tier: int | None = None


def bench_attack(
    choice: Choice,
    how: Filling,
    attacks: Sequence[str] = tuple(ATTACKS),
    shares: Sequence[float] = SHARES,
    defences: Sequence[str] = DEFENCES,
    *,
    tier: int | None = None,
) -> Result:
    """Run every method without attackers, and under every attack with every defence.

    Raises as :func:`benchmarks.grid.fill` does, and ConfigError for an attack or a defence that there is not.
    """
    for name in defences:
        if name not in DEFENCES:
            raise ConfigError(f"There is no defence '{name}'; there are {', '.join(DEFENCES)}.")
    cases = _cases(attacks, shares, defences, tier)
    found, missing = fill(
        [
            made
            for dataset in choice.datasets
            for method in choice.methods or METHODS
            for made in (_entry(choice, dataset, method, case) for case in cases)
        ],
        how,
    )
    given = [*(f"--attack {a}" for a in attacks), *(f"--share {s:g}" for s in shares)]
    given += [] if tier is None else [f"--tier {tier}"]
    where = "evenly over tiers" if tier is None else f"all of tier {tier}"
    return Result(
        title="Hostile clients" if tier is None else f"Hostile clients of tier {tier}",
        command=" ".join([choice.command("attack"), *given, *(f"--defence {d}" for d in defences)]),
        about=(
            f"A share of each round's clients, {where}, attack: "
            "label-flip trains on labels in reverse order, "
            "sign-flip sends -5 times its change, scaling 10 times the change of a label-flipped training, noise a "
            "normal draw 10 times as large as its change, and little-is-enough the attackers' mean less z deviations "
            "(Baruch et al. 2019). The defence `default` is that of `edge-fl serve`: samples at most 10 times the "
            "median, updates at most 2 times the median size. Each rule has these bounds, too, and is to withstand a "
            "quarter of attackers. The last column says by how many points the accuracy is below that of the same "
            f"method and seeds without attackers and without bounds. {setting_text(choice)}"
        ),
        rows=[
            {
                "data set": f.run.dataset,
                **f.entry.columns,
                "accuracy (%)": spread(finals(f)) or "failed",
                "lost (points)": _lost(f, found),
                "seeds": len(f.records),
            }
            for f in found
        ],
        notes=notes_of(found, missing),
        pictures=[
            Picture(dataset, f"Accuracy on {dataset} by attack and defence", partial(_draw, group))
            for dataset, group in by_dataset(found).items()
        ],
    )


def _cases(
    attacks: Sequence[str], shares: Sequence[float], defences: Sequence[str], tier: int | None
) -> list[_Case]:
    """The lines of one method; those that the others are held against first."""
    clean = [_Case("", 0.0, name) for name in _WITHOUT_RULE if name == "none" or name in defences]
    return clean + [
        _Case(attack, share, name, tier) for share in shares for name in defences for attack in attacks
    ]


def _entry(choice: Choice, dataset: str, method: str, case: _Case) -> Entry:
    attack, share, defence, tier = case
    columns: dict[str, str | float] = {
        "method": method,
        "attack": attack or "none",
        "attackers": share,
        "defence": defence,
    }
    bounds = {} if defence == "none" else _BOUNDS
    rule = None if defence in _WITHOUT_RULE else defence
    # Only the last model is looked at.
    last: dict[str, Any] = {
        "evaluate_every": choice.rounds,
        "attack": attack,
        "hostile": share,
        "hostile_tier": tier,
        "robust": rule,
    }
    return entry(choice, dataset, method, columns, **last, **bounds)


def _lost(filled: Filled, found: Sequence[Filled]) -> float | str:
    """By how many points it is below the same method without attackers or bounds."""
    for other in found:
        same = (other.run.dataset, other.run.recipe) == (filled.run.dataset, filled.run.recipe)
        if same and not other.run.attack and other.run.norm_bound is None:
            apart = difference(other, filled)
            return "" if apart is None else apart
    return ""


def _draw(group: Sequence[Filled], path: Path) -> None:
    """A panel a method and share of attackers: a mark a defence, by attack, and a line without either."""
    shown = [f for f in group if f.run.attack]
    cells = sorted({(f.run.recipe, f.run.hostile) for f in shown})
    attacks = [name for name in ATTACKS if any(f.run.attack == name for f in shown)]
    defences = [name for name in DEFENCES if any(f.entry.columns["defence"] == name for f in shown)]
    with panels(path, columns=max(len(cells), 1), title="held-out accuracy under attack") as drawn:
        for panel, (recipe, share) in zip(drawn, cells, strict=False):
            own = [f for f in shown if (f.run.recipe, f.run.hostile) == (recipe, share)]
            for n, defence in enumerate(defences):
                points = {f.run.attack: mean(finals(f)) for f in own if f.entry.columns["defence"] == defence}
                aside = 0.1 * (n - (len(defences) - 1) / 2)  # equal ones would hide each other
                places = [i + aside for i, name in enumerate(attacks) if name in points]
                values = [points[name] for name in attacks if name in points]
                panel.plot(places, values, marker="o", linestyle="", label=f"defence: {defence}")
            for clean in group:
                if clean.run.recipe == recipe and not clean.run.attack and clean.run.norm_bound is None:
                    panel.axhline(mean(finals(clean)), linestyle="--", color="grey", label="no attack, no defence")
            panel.set(
                title=f"{recipe}, {share:.0%} of clients attack", ylabel="held-out accuracy (%)", ylim=(0, 100)
            )
            panel.set_xticks(range(len(attacks)), attacks, rotation=30, ha="right")
