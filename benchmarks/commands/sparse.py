"""The experiments of sparse updates, which are grids of simulated runs, too: TCS and variational dropout."""

from typing import Annotated

import typer

from benchmarks.commands.grid_options import (
    RESULTS,
    Budget,
    Cache,
    Datasets,
    EvaluateEvery,
    Lr,
    Results,
    Seeds,
    chosen,
    filling,
)
from edge_fl.commands.measure_options import Json, Output, show

__all__ = ["tcs", "vardrop"]

_MNIST = ("mnist",)
_Model = Annotated[
    str, typer.Option(help="A model of the zoo for the data set [default: that of the other tables].")
]


def tcs(
    *,
    dataset: Datasets = None,
    model: _Model = "",
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help="centralised, dense, top-k, tcs, tcs-cold, tcs-l2, tcs-l4, tcs-l4-q5, tcs-lf, tcs-plf or "
            "tcs-momentum; repeat."
        ),
    ] = None,
    seed: Seeds = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of one local step; H times fewer of H.")] = 1200,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Clients, all picked every round [default: 10].")
    ] = None,
    lr: Lr = None,
    evaluate_every: EvaluateEvery = 1,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """TCS and its variants against top-K and dense updates: accuracy and bits, beside the paper's.

    Example: edge-fl bench tcs --dataset cifar-10 --model resnet18 --variant tcs-l4-q5 --variant dense --seed 0
    """
    from benchmarks.tcs import VARIANTS, bench_tcs

    choice = chosen(dataset or _MNIST, seed, rounds=rounds, clients=clients, lr=lr, evaluate_every=evaluate_every)
    with filling("bench tcs", results, cache, time_budget) as how:
        result = bench_tcs(choice, how, variant or tuple(VARIANTS), model)
    show(result, output, as_json=json)


def vardrop(
    *,
    dataset: Datasets = None,
    model: _Model = "",
    seed: Seeds = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of one step each.")] = 1500,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Clients, all picked every round [default: 4].")
    ] = None,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Variational dropout: how little is left of the model and of its traffic, beside the paper's numbers.

    Example: edge-fl bench vardrop --dataset mnist --model cifarnet --seed 0 -o docs/benchmarks/vardrop.md
    """
    from benchmarks.vardrop import bench_vardrop

    choice = chosen(dataset or _MNIST, seed, rounds=rounds, clients=clients)
    with filling("bench vardrop", results, cache, time_budget) as how:
        result = bench_vardrop(choice, how, model)
    show(result, output, as_json=json)
