"""The benchmarks that are grids of simulated runs: each run is made once and kept in a file they all share."""

from typing import Annotated

import typer

from benchmarks.commands.grid_options import (
    IMAGES,
    RESULTS,
    Budget,
    Cache,
    Clients,
    Datasets,
    EvaluateEvery,
    LocalSteps,
    Lr,
    Methods,
    Results,
    Rounds,
    Seeds,
    chosen,
    filling,
)
from edge_fl.commands.measure_options import Json, Output, show

__all__ = ["aggregation_rule", "dropout_rate", "table1", "table2", "tta", "uplink"]


def table1(
    *,
    dataset: Datasets = None,
    method: Methods = None,
    seed: Seeds = None,
    rounds: Rounds = 60,
    clients: Clients = None,
    local_steps: LocalSteps = None,
    lr: Lr = None,
    evaluate_every: EvaluateEvery = 1,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """FedBIAD's Table I: dropping methods by data set, accuracy and uplink, beside the paper's numbers.

    Example: edge-fl bench table1 --dataset mnist --time-budget 120 -o docs/benchmarks/table1.md
    """
    from benchmarks.paper_tables import bench_table1

    choice = chosen(
        dataset or IMAGES,
        seed,
        methods=method,
        rounds=rounds,
        clients=clients,
        local_steps=local_steps,
        lr=lr,
        evaluate_every=evaluate_every,
    )
    with filling("bench table1", results, cache, time_budget) as how:
        result = bench_table1(choice, how)
    show(result, output, as_json=json)


def table2(
    *,
    dataset: Datasets = None,
    method: Methods = None,
    seed: Seeds = None,
    rounds: Rounds = 60,
    clients: Clients = None,
    local_steps: LocalSteps = None,
    lr: Lr = None,
    evaluate_every: EvaluateEvery = 1,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """FedBIAD's Table II: compressors alone and on dropping methods, beside the paper's numbers.

    Example: edge-fl bench table2 --dataset fashion-mnist --method fedbiad+dgc -o docs/benchmarks/table2.md
    """
    from benchmarks.paper_tables import bench_table2

    choice = chosen(
        dataset or IMAGES,
        seed,
        methods=method,
        rounds=rounds,
        clients=clients,
        local_steps=local_steps,
        lr=lr,
        evaluate_every=evaluate_every,
    )
    with filling("bench table2", results, cache, time_budget) as how:
        result = bench_table2(choice, how)
    show(result, output, as_json=json)


def tta(
    *,
    dataset: Datasets = None,
    method: Methods = None,
    seed: Seeds = None,
    rounds: Rounds = 60,
    clients: Clients = None,
    local_steps: LocalSteps = None,
    lr: Lr = None,
    link: Annotated[
        str,
        typer.Option(help="3g, dsl, cable, 4g, lte, wifi, 5g or fibre, or Mbps down and up, such as 110.6/14."),
    ] = "5g",
    slowdown: Annotated[float, typer.Option(help="How much longer a step takes on a client than here.")] = 1.0,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Virtual time to the paper's target accuracies, of the runs of Table I.

    Example: edge-fl bench tta --dataset fashion-mnist --link lte --slowdown 10 -o docs/benchmarks/tta.md
    """
    from benchmarks.tta import bench_tta
    from device_sim.simulation.links import find_link

    choice = chosen(
        dataset or IMAGES, seed, methods=method, rounds=rounds, clients=clients, local_steps=local_steps, lr=lr
    )
    with filling("bench tta", results, cache, time_budget) as how:
        result = bench_tta(choice, how, find_link(link), slowdown)
    show(result, output, as_json=json)


def dropout_rate(
    *,
    dataset: Datasets = None,
    method: Methods = None,
    rate: Annotated[
        list[float] | None, typer.Option(help="p; repeat for several [default: 0.1, 0.2 ... 0.7].")
    ] = None,
    seed: Seeds = None,
    rounds: Rounds = 60,
    clients: Clients = None,
    local_steps: LocalSteps = None,
    lr: Lr = None,
    evaluate_every: EvaluateEvery = 1,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Accuracy and uplink of FedBIAD and FedDrop against the dropout rate.

    Example: edge-fl bench dropout-rate --method fedbiad --rate 0.3 --rate 0.6 -o docs/benchmarks/dropout-rate.md
    """
    from benchmarks.dropout_rate import RATES, bench_dropout_rate
    from edge_fl.core.share import thousandths

    choice = chosen(
        dataset or ("fashion-mnist",),
        seed,
        methods=method,
        rounds=rounds,
        clients=clients,
        local_steps=local_steps,
        lr=lr,
        evaluate_every=evaluate_every,
    )
    rates = tuple(thousandths(p) for p in rate) if rate else RATES
    with filling("bench dropout-rate", results, cache, time_budget) as how:
        result = bench_dropout_rate(choice, how, rates)
    show(result, output, as_json=json)


def aggregation_rule(
    *,
    dataset: Datasets = None,
    seed: Seeds = None,
    rounds: Rounds = 60,
    clients: Clients = None,
    local_steps: Annotated[
        list[int] | None, typer.Option(min=1, help="V; repeat for several [default: 20, 60].")
    ] = None,
    lr: Annotated[
        list[float] | None, typer.Option(help="A step size; repeat for several [default: 0.05, 0.1].")
    ] = None,
    stage_boundary: Annotated[
        list[int] | None,
        typer.Option(min=0, help="R_b, besides the paper's, with the default rule; repeat [default: 30, 0]."),
    ] = None,
    evaluate_every: EvaluateEvery = 1,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """FedBIAD's eq. (10) against other aggregation rules, with and without scaling, by step size, V and R_b.

    Example: edge-fl bench aggregation-rule --dataset mnist --seed 0 --lr 0.05 -o docs/benchmarks/aggregation-rule.md
    """
    from benchmarks.aggregation_rule import BOUNDARIES, LOCAL_STEPS, RATES, bench_aggregation_rule

    choice = chosen(dataset or IMAGES, seed, rounds=rounds, clients=clients, evaluate_every=evaluate_every)
    with filling("bench aggregation-rule", results, cache, time_budget) as how:
        result = bench_aggregation_rule(
            choice, how, lr or RATES, local_steps or LOCAL_STEPS, stage_boundary or BOUNDARIES
        )
    show(result, output, as_json=json)


def uplink(
    *,
    dataset: Datasets = None,
    method: Methods = None,
    seed: Seeds = None,
    rounds: Rounds = 60,
    clients: Clients = None,
    local_steps: LocalSteps = None,
    lr: Lr = None,
    evaluate_every: EvaluateEvery = 1,
    time_budget: Budget = None,
    results: Results = RESULTS,
    cache: Cache = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Accuracy against uplink: every method, compressor and preset on one plane.

    Example: edge-fl bench uplink --method fedbiad+dgc --method best-uplink -o docs/benchmarks/uplink.md
    """
    from benchmarks.uplink import bench_uplink

    choice = chosen(
        dataset or ("fashion-mnist",),
        seed,
        methods=method,
        rounds=rounds,
        clients=clients,
        local_steps=local_steps,
        lr=lr,
        evaluate_every=evaluate_every,
    )
    with filling("bench uplink", results, cache, time_budget) as how:
        result = bench_uplink(choice, how)
    show(result, output, as_json=json)
