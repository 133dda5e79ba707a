"""`edge-fl simulate`: a run in this process, for comparing methods."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_fl.commands.options import (
    Batch,
    Dropout,
    EvaluateEvery,
    Json,
    LocalSteps,
    Lr,
    LrDrop,
    Mode,
    Output,
    Partition,
    Recipe,
    Rounds,
    Rule,
    Scores,
    Seed,
    Settings,
    TestData,
    Widths,
    recipe_of,
    refuse_settings,
    runtime_name,
    show_summary,
)
from edge_fl.core.errors import ConfigError

if TYPE_CHECKING:
    from broker.observer import Observer
    from device_sim.simulation.simulate import Simulation

__all__ = ["simulate"]

_WITH_RESUME = ("bundle", "resume", "json", "link", "slowdown")


def simulate(
    context: typer.Context,
    *,
    bundle: Annotated[
        Path | None,
        typer.Argument(help="The bundle to train, from `edge-fl export` [with --resume: where the run had it]."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="What is cut over the clients, as `edge-fl device --data` has it, such as 'csv:all.csv?label=state' "
            "[default: the train split of the bundle's data set].",
            show_default=False,
        ),
    ] = None,
    test_data: TestData = None,
    score: Scores = None,
    clients: Annotated[int, typer.Option(help="Clients in all.")] = 100,
    fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of them picked a round (kappa) [default: 0.1, but at least one].", show_default=False
        ),
    ] = None,
    tiers: Annotated[int, typer.Option(help="Client i is of tier i mod this.")] = 1,
    partition: Partition = "iid",
    trainer: Annotated[
        str, typer.Option(help="runtime (each as its agent would, bit for bit) or stacked (many clients at once).")
    ] = "runtime",
    runtime: Annotated[
        str | None,
        typer.Option(
            help="With --trainer runtime: what every client trains in [default: onnx].", parser=runtime_name
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="With --trainer stacked: cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="CPU threads, in training and in evaluation.")] = 1,
    processes: Annotated[
        int, typer.Option(help="Processes that share a round's clients, each training on --threads.")
    ] = 1,
    method: Recipe = "fedavg",
    dropout: Dropout = None,
    widths: Widths = None,
    mode: Mode = None,
    rule: Rule = None,
    set_: Settings = None,
    rounds: Rounds = 20,
    local_steps: LocalSteps = 20,
    batch: Batch = 20,
    lr: Lr = 0.1,
    lr_drop: LrDrop = None,
    seed: Seed = 0,
    evaluate_every: EvaluateEvery = 1,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the interrupted run of this folder, with its own settings.")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            help="Also time a client's local training here, and tell how long the run would have taken over this link: "
            "3g, dsl, cable, 4g, lte, wifi, 5g or fibre, or Mbps down and up, such as 110.6/14."
        ),
    ] = None,
    slowdown: Annotated[
        str | None,
        typer.Option(help="With --link: how much longer than here a step takes, one a tier [default: 1,2,4,8]."),
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Simulate a run in this process, with the frames, checks and rules of a real one.

    Example: edge-fl simulate bundle/ --clients 1000 --fraction 0.1 --method fedbiad --dropout 0.5

    Example: edge-fl simulate --resume runs/20260101-120000-abcd
    """
    from rich.console import Console

    from broker.session import new_run_id
    from device_sim.simulation.api import begin as begin_simulation
    from device_sim.simulation.progress import view
    from device_sim.simulation.simulate import Simulation
    from device_sim.simulation.virtual_time import virtual_clock

    run = new_run_id()
    root = resume or output or Path("runs") / run
    if slowdown is not None and link is None:
        raise ConfigError("--slowdown is for telling virtual time: give a --link with it.")
    clock = None if link is None else virtual_clock(link, slowdown)

    def begin(observer: "Observer") -> "Simulation":
        if resume is not None:
            refuse_settings(context, _WITH_RESUME)
            return Simulation.resume(resume, observer=observer, bundle=bundle)
        if bundle is None:
            raise ConfigError("A simulation needs a bundle to train, or --resume with the folder of a run.")
        recipe, parameters = recipe_of(
            method, dropout=dropout, widths=widths, mode=mode, rule=rule, settings=set_ or []
        )
        return begin_simulation(
            bundle,
            data,
            test_data=test_data,
            method=recipe,
            parameters=parameters,
            scores=score or (),
            clients=clients,
            fraction=fraction,
            tiers=tiers,
            partition=partition,
            trainer=trainer,
            runtime=runtime,
            device=device,
            threads=threads,
            processes=processes,
            rounds=rounds,
            local_steps=local_steps,
            batch=batch,
            lr=lr,
            lr_drops=lr_drop or (),
            seed=seed,
            evaluate_every=evaluate_every,
            output=root,
            observer=observer,
        )

    begun = False
    try:
        with view(Console(stderr=True)) as observer:
            simulation = begin(observer)
            begun = True
            summary = simulation.run()
    except KeyboardInterrupt:
        if begun:
            print(f"Continue it with: edge-fl simulate --resume {root}", file=sys.stderr)
        raise
    figures, lines = summary.figures(), summary.lines()
    if clock is not None:
        seconds = clock(simulation, summary)
        figures["virtual_seconds"] = seconds
        lines.append(f"virtual time {seconds:,.1f} s, {seconds / len(summary.rounds):.2f} s a round")
    show_summary(figures, lines, as_json=json)
