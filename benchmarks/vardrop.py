"""Variational dropout's experiment: how little is left of the model and of its traffic (Du et al., section 5)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.figures import accuracy_figures, by_dataset, curves_of, down_shares, finals, notes_of, spread
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill
from benchmarks.plots import panels
from benchmarks.reference import VARDROP
from edge_fl.measure.table import Picture, Result, Row

__all__ = ["bench_vardrop", "vardrop_row"]

_CLIENTS, _BATCH = 4, 128
_FULL = 1000
_DENSE = {"kl": 0.0, "start": [-20.0, -20.0], "rate_lr": 1e-9}
"""Rates so low that they are none, and stay so: the same training, Adam on the server, without a weight dropped."""


def bench_vardrop(choice: Choice, how: Filling) -> Result:
    """Train with learned dropout rates, and in the same way without any.

    ``choice.clients`` are all picked (4 for None).
    Raises as :func:`benchmarks.grid.fill` does.
    """
    found, missing = fill([e for dataset in choice.datasets for e in _entries(choice, dataset)], how)
    return Result(
        title="Variational dropout",
        command=choice.command("vardrop"),
        about=f"A dropout rate for every weight: {choice.clients or _CLIENTS} devices of equal, random parts, all of "
        f"them in every round, {choice.rounds} rounds of one step of a batch of {_BATCH}. Devices send gradients, from "
        "which the server's Adam moves the model; dense is the same training without rates. Accuracy is after pruning, "
        "before is that of the weights training would go on from, and non-zeros are what is left. Up and down are mean "
        "frames as shares of a dense one, up also in the last round. Models go down dense; the paper counts sparse "
        "averages, which the devices could as well download, and both directions in one: its traffic is held against "
        "up. Its numbers are of 4 devices from a random start: CifarNet on MNIST and Fashion-MNIST, ResNet-18 on "
        "CIFAR-10.",
        rows=[vardrop_row(filled) for filled in found],
        notes=notes_of(found, missing),
        pictures=[
            Picture(dataset, f"Accuracy and uplink on {dataset} by round", partial(_draw, dataset, group))
            for dataset, group in by_dataset(found).items()
        ],
    )


def _entries(choice: Choice, dataset: str) -> list[Entry]:
    clients = choice.clients or _CLIENTS
    common: dict[str, Any] = {
        "clients": clients,
        "clients_per_round": clients,
        "partition": "iid",
        "local_steps": 1,
        "batch": _BATCH,
        "lr": 1.0,  # makes a round's differences minus the gradients, as the paper's devices send
        "clip": None,
        "scored": (_FULL,),
    }
    return [
        entry(choice, dataset, "vardrop", {"weights": "dense"}, _DENSE, **common),
        entry(choice, dataset, "vardrop", {"weights": "sparse"}, **common),
    ]


def vardrop_row(filled: Filled) -> Row:
    """The runs' line of the table, beside what the paper reports of the data set."""
    finished = [record.final for record in filled.records if record.final is not None]
    up = [[m.uplink / record.dense for m in record.rounds] for record in filled.records]
    down = down_shares(filled)
    theirs = {} if filled.run.parameters else VARDROP.get(filled.run.dataset, {})
    nonzero = [100 * final.nonzero for final in finished]
    row: dict[str, str | float] = {
        "data set": filled.run.dataset,
        "model": filled.run.case().name,
        **filled.entry.columns,
        **accuracy_figures(filled),
        "before (%)": spread([100 * final.unpruned for final in finished]),
        "non-zeros (%)": spread(nonzero),
        "up (%)": spread([100 * mean(each) for each in up]),
        "last round (%)": spread([100 * each[-1] for each in up]),
        "down (%)": spread([100 * mean(down)]) if down else "",
    }
    ours = {"accuracy": finals(filled), "non-zeros": nonzero, "traffic": [100 * mean(each) for each in up]}
    for name, values in ours.items():
        reported = theirs.get(name)
        row[f"paper's {name} (%)"] = "" if reported is None else f"{reported:g}"
        row[f"- {name}"] = mean(values) - reported if reported is not None and values else ""
    return row


def _draw(dataset: str, group: Sequence[Filled], path: Path) -> None:
    with panels(path, columns=2, title=dataset) as (left, right):
        for filled in group:
            rounds = range(1, filled.run.rounds + 1)
            evaluated, accuracies = curves_of(filled)
            shares = np.array([[100 * m.uplink / r.dense for m in r.rounds] for r in filled.records])
            left.plot(evaluated, accuracies.mean(axis=0), label=filled.entry.label)
            right.plot(rounds, shares.mean(axis=0))
        left.set(xlabel="round", ylabel="held-out accuracy, pruned (%)")
        right.set(xlabel="round", ylabel="update as a share of a dense one (%)", ylim=(0, None))
