"""`edge-fl bench bound`, for which nothing is trained."""

from typing import Annotated

import typer

from benchmarks.commands.grid_options import IMAGES, Clients, Datasets, LocalSteps, Rounds
from edge_fl.commands.measure_options import Json, Output, show

__all__ = ["bound"]


def bound(
    *,
    dataset: Datasets = None,
    rate: Annotated[
        list[float] | None, typer.Option(help="p; repeat for several [default: 0, 0.2, 0.5, 0.8].")
    ] = None,
    rounds: Rounds = 60,
    clients: Clients = None,
    local_steps: LocalSteps = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """The generalisation bound of FedBIAD's Theorem 1 against the rounds; nothing is trained.

    Example: edge-fl bench bound --dataset fashion-mnist --rounds 1000 -o docs/benchmarks/bound.md
    """
    from benchmarks.bound import RATES, bench_bound
    from benchmarks.grid import Choice
    from edge_fl.core.share import thousandths

    choice = Choice(dataset or IMAGES, (0,), rounds=rounds, clients=clients, local_steps=local_steps)
    rates = tuple(thousandths(p) for p in rate) if rate else RATES
    show(bench_bound(choice, rates), output, as_json=json)
