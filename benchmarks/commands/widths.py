"""FjORD's experiments, which are grids of simulated runs, too: accuracy by the width of the model."""

from typing import Annotated

import typer

from benchmarks.commands.grid_options import (
    RESULTS,
    Budget,
    Cache,
    Clients,
    Datasets,
    Lr,
    Methods,
    Results,
    Rounds,
    Seeds,
    chosen,
    filling,
)
from edge_fl.commands.measure_options import Json, Output, show

__all__ = ["heterogeneous", "od"]

_FEMNIST = ("femnist",)
_LocalSteps = Annotated[
    int | None, typer.Option(min=1, help="Local SGD steps a round (V) [default: 7, an epoch of a FEMNIST writer].")
]


def heterogeneous(
    *,
    dataset: Datasets = None,
    method: Methods = None,
    clusters: Annotated[
        list[int] | None, typer.Option(help="5 for uniform-5, or 2, 4, 8 or 10; repeat for several [default: 5].")
    ] = None,
    drop_scale: Annotated[
        list[float] | None,
        typer.Option(help="Each cluster but the ablest is this / clusters of all clients; repeat [default: 1]."),
    ] = None,
    seed: Seeds = None,
    rounds: Rounds = 500,
    clients: Clients = None,
    local_steps: _LocalSteps = None,
    lr: Lr = None,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Accuracy by the width of the model, of methods for clients of different means, FEMNIST by writer.

    Example: edge-fl bench heterogeneous --clusters 10 --drop-scale 0.5 --seed 0 -o docs/benchmarks/heterogeneous.md
    """
    from benchmarks.clusters import Clusters
    from benchmarks.heterogeneous import bench_heterogeneous

    choice = chosen(
        dataset or _FEMNIST, seed, methods=method, rounds=rounds, clients=clients, local_steps=local_steps, lr=lr
    )
    settings = [Clusters(count, scale) for count in clusters or (5,) for scale in drop_scale or (1.0,)]
    with filling("bench heterogeneous", results, cache, time_budget) as how:
        result = bench_heterogeneous(choice, how, settings)
    show(result, output, as_json=json)


def od(
    *,
    dataset: Datasets = None,
    method: Methods = None,
    clusters: Annotated[
        list[int] | None, typer.Option(help="How many widths FjORD draws from: 2, 4, 5, 8 or 10 [default: 5, 10].")
    ] = None,
    seed: Seeds = None,
    rounds: Rounds = 500,
    clients: Clients = None,
    local_steps: _LocalSteps = None,
    lr: Lr = None,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Ordered dropout against models trained for one width alone, all clients able to train the whole model.

    Example: edge-fl bench od --clusters 5 --seed 0 -o docs/benchmarks/od.md
    """
    from benchmarks.clusters import Clusters
    from benchmarks.heterogeneous import bench_od

    choice = chosen(
        dataset or _FEMNIST, seed, methods=method, rounds=rounds, clients=clients, local_steps=local_steps, lr=lr
    )
    settings = [Clusters(count) for count in clusters or (5, 10)]
    with filling("bench od", results, cache, time_budget) as how:
        result = bench_od(choice, how, settings)
    show(result, output, as_json=json)
