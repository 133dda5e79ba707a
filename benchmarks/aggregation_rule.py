"""FedBIAD's eq. (10) and its alternatives: rules and scaling, at several step sizes and numbers of local steps, an
earlier end of stage one, and ``units`` mode.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.figures import accuracy_figures, difference, notes_of
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Result, Row
from edge_fl.methods.fedbiad import FedBiadParameters

__all__ = ["BOUNDARIES", "LOCAL_STEPS", "RATES", "RULES", "bench_aggregation_rule"]

RULES = ("holders", "zeros", "mean")
RATES = (0.05, 0.1)
LOCAL_STEPS = (20, 60)
BOUNDARIES = (30, 0)
"""R_b besides the paper's 55, tried with the default rule alone, as ``units`` mode is."""
_PAPERS = FedBiadParameters().stage_boundary
_OFTEN = {"tau_in": "steps"}
"""The reading with the most redraws, for rules to differ in; without a first stage there are none."""


def bench_aggregation_rule(
    choice: Choice,
    how: Filling,
    rates: Sequence[float] = RATES,
    local_steps: Sequence[int] = LOCAL_STEPS,
    boundaries: Sequence[int] = BOUNDARIES,
) -> Result:
    """Run FedBIAD with every rule, with and without scaling, and FedAvg at the same step sizes and local steps.

    ``boundaries`` are rounds at which stage one ends, each tried with the default rule besides the paper's,
    where it is before that and the last round.

    Raises as :func:`benchmarks.grid.fill` does, and ConfigError when other methods are asked for.
    """
    if choice.methods is not None:
        raise ConfigError("The aggregation rule is studied of fedbiad alone: leave --method out.")
    found, missing = fill(
        [
            filled
            for dataset in choice.datasets
            for steps in local_steps
            for rate in rates
            for filled in _entries(replace(choice, lr=rate, local_steps=steps), dataset, boundaries)
        ],
        how,
    )
    baselines = {_setting(f): f for f in found if f.run.recipe == "fedavg"}
    return Result(
        title="Aggregation rule",
        command=choice.command("aggregation-rule")
        + "".join(f" --lr {rate:g}" for rate in rates)
        + "".join(f" --local-steps {steps}" for steps in local_steps)
        + "".join(f" --stage-boundary {boundary}" for boundary in boundaries),
        about="FedBIAD's eq. (10) as printed counts a dropped row as zeros (rule `zeros`); `holders` takes each row's "
        "mean over those who hold it, `mean` counts a dropped row as unchanged. Scaled is whether kept activations "
        "are multiplied by 1 / (1 - p) in local training. Stage one, in which a client whose loss rises draws another "
        "pattern and leaves rows behind that it has trained, ends with round R_b, 55 in the paper. It looks every 3 "
        "mini-batches here (`tau_in=steps`), and so draws more often than by default. With R_b = 0 "
        "there is none, nothing is ever scored, and rows are drawn once a round. In mode `units` the columns that a "
        "dropped unit feeds stay home with its row, in `rows`, the paper's, kept rows travel whole; `units` with "
        "R_b = 0 is FedDrop, but that the device draws. A tenth of the clients a round, "
        f"{choice.rounds} rounds of V steps of a batch of {found[0].run.batch}; accuracy as in "
        "[Table I](table1.md). The last column is "
        "the difference to FedAvg at the same step size and V, over the seeds that both have.",
        rows=[_row(filled, baselines) for filled in found],
        notes=notes_of(found, missing),
    )


def _entries(choice: Choice, dataset: str, boundaries: Sequence[int]) -> list[Entry]:
    where: dict[str, str | float] = {"V": str(choice.local_steps), "step size": choice.lr or ""}
    dense = entry(
        choice,
        dataset,
        "fedavg",
        {"method": "fedavg", "rule": "mean", "scaled": "", "R_b": "", "mode": "", **where},
    )
    settings: list[tuple[str, bool, int, str]] = [
        (rule, scale, _PAPERS, "rows") for rule in RULES for scale in (True, False)
    ]
    others_end = [
        end for end in dict.fromkeys(boundaries) if min(end, choice.rounds) < min(_PAPERS, choice.rounds)
    ]
    settings += [(RULES[0], True, end, "rows") for end in others_end]
    settings += [(RULES[0], True, end, "units") for end in (_PAPERS, *others_end)]
    others = [
        entry(
            choice,
            dataset,
            "fedbiad",
            {
                "method": "fedbiad",
                "rule": rule,
                "scaled": "yes" if scale else "no",
                "R_b": str(end),
                "mode": mode,
                **where,
            },
            {"rule": rule, "scale": scale, "stage_boundary": end, "mode": mode, **(_OFTEN if end else {})},
        )
        for rule, scale, end, mode in settings
    ]
    return [dense, *others]


def _setting(filled: Filled) -> tuple[str, float, int]:
    return filled.run.dataset, filled.run.lr, filled.run.local_steps


def _row(filled: Filled, baselines: dict[tuple[str, float, int], Filled]) -> Row:
    baseline = baselines.get(_setting(filled))
    apart = None if baseline is None else difference(filled, baseline)
    return {
        "data set": filled.run.dataset,
        **filled.entry.columns,
        **accuracy_figures(filled),
        "- FedAvg's": "" if apart is None else apart,
    }
