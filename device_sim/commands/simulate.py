"""`edge-fl simulate`: a run in this process, for comparing methods."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edge_fl.commands.options import (
    Attackers,
    Batch,
    CollectStatistics,
    Dp,
    DpClip,
    DpDelta,
    DpEpsilon,
    DpNoise,
    DpQuantile,
    Dropout,
    EvaluateEvery,
    ExactSums,
    InitialWeights,
    Json,
    KeepBest,
    LocalSteps,
    Lr,
    LrDrop,
    LrWarmup,
    MaxSamples,
    Mode,
    NormBound,
    Output,
    Partition,
    Patience,
    Recipe,
    Robust,
    Rounds,
    Rule,
    SamplesBound,
    Scores,
    Seed,
    Settings,
    StatisticsEvery,
    TestData,
    Widths,
    parameters_of,
    privacy_of,
    refuse_given,
    refuse_settings,
    runtime_name,
    show_summary,
)
from edge_fl.commands.secure_options import (
    Secure,
    SecureCohort,
    SecureHolders,
    SecureReach,
    SecureThreshold,
    secure_of,
)
from edge_fl.core.errors import ConfigError

if TYPE_CHECKING:
    from broker.observer import Observer
    from device_sim.simulation.settings import World
    from device_sim.simulation.simulate import Simulation

__all__ = ["simulate"]

_WITH_RESUME = ("bundle", "resume", "json", "ray_address", "insecure")


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
        int | None,
        typer.Option(
            help="Workers that share a round's clients, each on --threads [default: 1, or with --engine ray as many as "
            "fit].",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        Literal["processes", "ray"],
        typer.Option(help="What workers are: processes of this machine, or actors of a Ray cluster."),
    ] = "processes",
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="With --engine ray: the cluster's head, such as 10.0.0.5:6379 [default: a cluster is started here].",
            show_default=False,
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="With --ray-address: join a cluster without a token.")
    ] = False,
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
    lr_warmup: LrWarmup = 0,
    statistics_every: StatisticsEvery = 1,
    collect_statistics: CollectStatistics = None,
    seed: Seed = 0,
    evaluate_every: EvaluateEvery = 1,
    initial_weights: InitialWeights = None,
    keep_best: KeepBest = None,
    patience: Patience = 0,
    exact_sums: ExactSums = False,
    secure: Secure = False,
    secure_holders: SecureHolders = 5,
    secure_threshold: SecureThreshold = 0.67,
    secure_reach: SecureReach = 1.0,
    secure_cohort: SecureCohort = 100,
    max_samples: MaxSamples = None,
    samples_bound: SamplesBound = 10.0,
    norm_bound: NormBound = 2.0,
    robust: Robust = None,
    attackers: Attackers = 0.25,
    dp: Dp = None,
    dp_epsilon: DpEpsilon = None,
    dp_noise: DpNoise = None,
    dp_delta: DpDelta = 1e-5,
    dp_clip: DpClip = 1.0,
    dp_quantile: DpQuantile = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the interrupted run of this folder, with its own settings.")
    ] = None,
    evaluate_on: Annotated[
        int, typer.Option(help="Clients that score the model then, too, on what --test-share holds out.")
    ] = 0,
    test_share: Annotated[float, typer.Option(help="Share of each client's samples held out of training.")] = 0.0,
    selection: Annotated[
        Literal["random", "least-recent", "availability", "capability"],
        typer.Option(
            help="Who is picked: anyone, who waited longest, who answers most often, or who is quickest."
        ),
    ] = "random",
    link: Annotated[
        str | None,
        typer.Option(
            help="Let virtual time pass, over this link of every client: 3g, dsl, cable, 4g, lte, wifi, 5g or fibre, "
            "or Mbps down and up, such as 110.6/14."
        ),
    ] = None,
    step_seconds: Annotated[
        str | None,
        typer.Option(help="With --link: seconds of a local step, one a tier [default: as measured here]."),
    ] = None,
    slowdown: Annotated[
        str | None,
        typer.Option(help="With --link: how much longer a step takes, one a tier [default: 1,2,4,8]."),
    ] = None,
    spread: Annotated[
        float, typer.Option(help="With --link: training takes up to this share less or more, at random.")
    ] = 0.0,
    online: Annotated[float, typer.Option(help="With --link: share of the time that a client is there.")] = 1.0,
    stay: Annotated[float, typer.Option(help="With --online: mean seconds until a client leaves.")] = 600.0,
    failures: Annotated[float, typer.Option(help="With --link: share of tasks that come to nothing.")] = 0.0,
    deadline: Annotated[
        float,
        typer.Option(
            help="With --link: virtual seconds that an attempt at a round or, with --buffer, a client may take."
        ),
    ] = 120.0,
    quorum: Annotated[
        float, typer.Option(help="With --link: share of the picked clients that must answer by then.")
    ] = 0.5,
    buffer: Annotated[
        int,
        typer.Option(
            help="With --link: close a round after so many updates (FedBuff), of the clients that train at any time."
        ),
    ] = 0,
    tier_choice: Annotated[
        Literal["registered", "auto"],
        typer.Option(help="A client's tier: its own or, with --link, the ablest that it can do in time."),
    ] = "registered",
    output: Output = None,
    json: Json = False,
) -> None:
    """Simulate a run in this process, with the frames, checks and rules of a real one.

    Example: edge-fl simulate bundle/ --clients 1000 --fraction 0.1 --method fedbiad --dropout 0.5

    Example: edge-fl simulate bundle/ --link wifi --online 0.7 --buffer 10 --clients 500

    Example: edge-fl simulate --resume runs/20260101-120000-abcd
    """
    from rich.console import Console

    from broker.run_folder import new_run_id
    from device_sim.simulation.api import begin as begin_simulation
    from device_sim.simulation.progress import view
    from device_sim.simulation.settings import RayCluster
    from device_sim.simulation.simulate import Simulation
    from edge_fl.runs.run import Run

    run = new_run_id()
    root = resume or output or Path("runs") / run
    timing = {"steps": step_seconds, "slowdowns": slowdown, "spread": spread, "online": online, "stay": stay}
    world = _world(context, link, {**timing, "failures": failures})

    def begin(observer: "Observer") -> "Simulation":
        if resume is not None:
            refuse_settings(context, _WITH_RESUME)
            cluster = None if ray_address is None else RayCluster(ray_address, insecure=insecure)
            return Simulation.resume(resume, observer=observer, bundle=bundle, ray=cluster)
        if bundle is None:
            raise ConfigError("A simulation needs a bundle to train, or --resume with the folder of a run.")
        privacy = privacy_of(
            context,
            dp,
            epsilon=dp_epsilon,
            noise=dp_noise,
            delta=dp_delta,
            clip=dp_clip,
            quantile=dp_quantile,
        )
        return begin_simulation(
            bundle,
            data,
            test_data=test_data,
            method=method,
            parameters=parameters_of(dropout=dropout, widths=widths, mode=mode, rule=rule, settings=set_),
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
            engine=engine,
            ray_address=ray_address,
            insecure=insecure,
            rounds=rounds,
            local_steps=local_steps,
            batch=batch,
            lr=lr,
            lr_drops=lr_drop or (),
            lr_warmup=lr_warmup,
            statistics_every=statistics_every,
            collect_statistics=collect_statistics,
            run=run,
            seed=seed,
            evaluate_every=evaluate_every,
            initial_weights=initial_weights,
            keep_best=keep_best,
            patience=patience,
            max_samples=max_samples,
            samples_bound=samples_bound or None,
            norm_bound=norm_bound or None,
            robust=robust,
            attackers=attackers,
            exact_sums=exact_sums,
            secure=secure_of(
                context,
                secure,
                holders=secure_holders,
                threshold=secure_threshold,
                reach=secure_reach,
                cohort=secure_cohort,
            ),
            privacy=privacy,
            world=world,
            test_share=test_share,
            evaluate_on=evaluate_on,
            buffer=buffer,
            tier_choice=tier_choice,
            selection=selection,
            deadline=deadline,
            quorum=quorum,
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
    plot = Run(summary.folder).plot(dense=summary.dense)
    figures, lines = summary.figures(), [*summary.lines(), f"plot {plot}"]
    timed = simulation.settings.world
    if timed is not None:
        if world is not None and not world.steps:
            steps = ",".join(f"{step:.3g}" for step in timed.steps)
            lines.append(
                f"a step was measured here: --step-seconds {steps} takes about as long, and repeats itself"
            )
        seconds = sum(metrics.seconds for metrics in summary.rounds)
        figures["virtual_seconds"] = seconds
        lines.append(f"virtual time {seconds:,.1f} s, {seconds / len(summary.rounds):.2f} s a round")
    show_summary(figures, lines, as_json=json)


_TIMED = ("step_seconds", "slowdown", "spread", "online", "stay", "failures", "deadline", "quorum", "buffer")
"""Options that mean something where virtual time passes."""


def _world(context: typer.Context, link: str | None, options: dict[str, Any]) -> "World | None":
    """What ``options`` make of a link; ConfigError where they are given without one."""
    from device_sim.simulation.settings import World

    if link is None:
        refuse_given(context, _TIMED, "says how virtual time passes: give a --link with it")
        return None
    for name in ("steps", "slowdowns"):
        if options[name] is None:
            del options[name]
        else:
            options[name] = _factors(name, options[name])
    return World(link, **options)


def _factors(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError as error:
        raise ConfigError(f"The {name} are numbers with commas between, such as 1,2,4, not '{text}'.") from error
