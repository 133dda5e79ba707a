"""`edge-fl simulate`: a run in this process, for comparing methods."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.cli.options import (
    Batch,
    Dropout,
    Json,
    LocalSteps,
    Lr,
    Mode,
    Output,
    Partition,
    Recipe,
    Rounds,
    Rule,
    Seed,
    Settings,
    method_parameters,
    runtime_name,
    show_summary,
)

__all__ = ["simulate"]


def simulate(
    *,
    bundle: Annotated[Path, typer.Argument(help="The bundle to train, from `edge-fl export`.")],
    clients: Annotated[int, typer.Option(help="Clients in all.")] = 100,
    fraction: Annotated[float, typer.Option(help="Share of them picked a round (kappa).")] = 0.1,
    tiers: Annotated[int, typer.Option(help="Client i is of tier i mod this.")] = 1,
    partition: Partition = "iid",
    trainer: Annotated[
        str, typer.Option(help="stacked (many clients at once) or runtime (each as its agent would, bit for bit).")
    ] = "stacked",
    runtime: Annotated[
        str, typer.Option(help="With --trainer runtime: what every client trains in.", parser=runtime_name)
    ] = "onnx",
    device: Annotated[str, typer.Option(help="With --trainer stacked: cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="CPU threads of a training step.")] = 1,
    method: Recipe = "fedavg",
    dropout: Dropout = None,
    mode: Mode = None,
    rule: Rule = None,
    set_: Settings = None,
    rounds: Rounds = 60,
    local_steps: LocalSteps = 60,
    batch: Batch = 20,
    lr: Lr = 0.05,
    seed: Seed = 0,
    output: Output = None,
    json: Json = False,
) -> None:
    """Simulate a run in this process, with the frames, checks and rules of a real one.

    Example: edge-fl simulate bundle/ --clients 1000 --fraction 0.1 --method fedbiad --dropout 0.5
    """
    from rich.console import Console

    from broker.config import RunConfig
    from broker.live import PlainView
    from broker.session import new_run_id
    from device_sim.settings import Population, TrainerSettings
    from device_sim.simulate import Simulation
    from edge_fl.bundle import Bundle
    from edge_fl.data.partition import Kind

    run, population = new_run_id(), Population(clients, tiers, Kind.parse(partition))
    config = RunConfig(
        run=run,
        method=method,
        parameters=method_parameters(dropout=dropout, mode=mode, rule=rule, settings=set_ or []),
        rounds=rounds,
        clients_per_round=population.share(fraction),
        local_steps=local_steps,
        batch=batch,
        lr=lr,
        seed=seed,
    )
    summary = Simulation(
        bundle=Bundle.load(bundle),
        config=config,
        population=population,
        trainer=TrainerSettings(trainer, runtime, device, threads),
        root=output if output is not None else Path("runs") / run,
        observer=PlainView(Console(stderr=True)),
    ).run()
    show_summary(summary.figures(), summary.lines(), as_json=json)
