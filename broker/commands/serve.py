"""`edge-fl serve`: the coordinator, with a broker of its own or over one that is there."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edge_fl.commands.broker_options import (
    Ca,
    Cert,
    Fleet,
    IdentityFile,
    Insecure,
    Key,
    PasswordFile,
    User,
    access_of,
    broker_of,
    fleet_of,
)
from edge_fl.commands.log import LogFile, LogFormat, LogFormatOption, logging_to
from edge_fl.commands.options import (
    Attackers,
    Batch,
    CollectStatistics,
    Database,
    Dp,
    DpClip,
    DpDelta,
    DpDevices,
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
    given_again,
    parameters_of,
    privacy_of,
    refuse_given,
    refuse_settings,
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
from edge_fl.core.errors import ConfigError, RunError, StateError

if TYPE_CHECKING:
    from broker.summary import RunSummary
    from edge_fl.runs.config import RunConfig

__all__ = ["serve"]

_OF_A_PROCESS = [
    *("broker", "host", "port", "connect_timeout", "database", "models", "fleet", "metrics"),
    *("identity", "ca", "cert", "key", "user", "password_file", "passwords", "insecure"),
    *("workers", "log_level", "log_file", "log_format", "json"),
]
"""Options that a run does not keep."""


def serve(
    context: typer.Context,
    *,
    bundle: Annotated[
        Path | None,
        typer.Argument(help="The bundle to train, from `edge-fl export` [with --resume: where the run had it]."),
    ] = None,
    method: Recipe = "fedavg",
    dropout: Dropout = None,
    widths: Widths = None,
    mode: Mode = None,
    rule: Rule = None,
    set_: Settings = None,
    rounds: Rounds = 20,
    clients_per_round: Annotated[int, typer.Option(help="Devices picked a round.")] = 10,
    min_clients: Annotated[int, typer.Option(help="Devices to wait for before the first round, if more.")] = 1,
    local_steps: LocalSteps = 20,
    batch: Batch = 20,
    lr: Lr = 0.1,
    lr_drop: LrDrop = None,
    lr_warmup: LrWarmup = 0,
    statistics_every: StatisticsEvery = 1,
    collect_statistics: CollectStatistics = None,
    seed: Seed = 0,
    test_data: TestData = None,
    score: Scores = None,
    evaluate_every: EvaluateEvery = 1,
    initial_weights: InitialWeights = None,
    keep_best: KeepBest = None,
    patience: Patience = 0,
    max_devices: Annotated[int, typer.Option(min=1, help="Refuse devices beyond so many.")] = 100_000,
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
    dp_devices: DpDevices = None,
    rollback: Annotated[
        float,
        typer.Option(
            help="Make a round's model again, without the updates that ruined it, where its held-out loss is more than "
            "so many times the median of the last evaluations; 0: never."
        ),
    ] = 3.0,
    evaluate_on: Annotated[
        int,
        typer.Option(
            help="Devices that score it then, too, on what their --test-share holds out [not with --buffer]."
        ),
    ] = 0,
    broker: Annotated[
        str | None,
        typer.Option(
            help="'embedded', or one that runs: mqtts://host:port, mqtt:// or wss:// [default: the identity's, or "
            "embedded].",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Interface of the embedded broker [default: 127.0.0.1].", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the embedded broker; 0 takes a free one [default: the one in --identity; without, 1883, with "
            "--cert 8883].",
            show_default=False,
        ),
    ] = None,
    passwords: Annotated[
        Path | None,
        typer.Option(
            help="Users whom the embedded broker lets in, as `edge-fl provision password` writes them.",
            show_default=False,
        ),
    ] = None,
    identity: IdentityFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    user: User = None,
    password_file: PasswordFile = None,
    insecure: Insecure = False,
    exact_sums: ExactSums = False,
    secure: Secure = False,
    secure_holders: SecureHolders = 5,
    secure_threshold: SecureThreshold = 0.67,
    secure_reach: SecureReach = 1.0,
    secure_cohort: SecureCohort = 100,
    deadline: Annotated[
        float,
        typer.Option(
            help="Seconds that an attempt at a round (there are 3) or, with --buffer, a client may take."
        ),
    ] = 120.0,
    buffer: Annotated[
        int,
        typer.Option(
            help="FedBuff: close a round after so many updates, of --clients-per-round that train at any time; 0 waits."
        ),
    ] = 0,
    quorum: Annotated[
        float, typer.Option(help="Share of the picked devices that must answer [not with --buffer].")
    ] = 0.5,
    tiers: Annotated[
        Literal["registered", "auto"],
        typer.Option(help="A device's tier: as it registered, or the ablest that it measured it can do in time."),
    ] = "registered",
    selection: Annotated[
        Literal["random", "least-recent", "availability", "capability"],
        typer.Option(
            help="Who is picked: anyone, who waited longest, who answers most often, or who is quickest."
        ),
    ] = "random",
    wait: Annotated[float, typer.Option(help="Seconds to wait for enough devices.")] = 300.0,
    connect_timeout: Annotated[float, typer.Option(help="Seconds to try a broker that is not embedded.")] = 15.0,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run of this folder, in the middle of a round, with its own settings."),
    ] = None,
    database: Database = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Where models of the last rounds are kept: a folder, s3://bucket/run ... [default: the run folder]."
        ),
    ] = None,
    output: Output = None,
    fleet: Fleet = None,
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            max=64,
            help="Processes that take in and check updates, each with an MQTT session. With --exact-sums they add "
            "them up, too [default: 0, this one does].",
            show_default=False,
        ),
    ] = 0,
    metrics: Annotated[
        str | None, typer.Option(help="Serve figures for Prometheus on this HOST:PORT, under /metrics.")
    ] = None,
    log_level: Annotated[
        Literal["info", "warning"],
        typer.Option(help="Without a terminal: all that devices do, or rounds and what went wrong alone."),
    ] = "info",
    log_file: LogFile = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    json: Json = False,
) -> None:
    """Coordinate a run: pick devices, send the model, aggregate what comes back, evaluate.

    Example: edge-fl serve bundle/ --method fedbiad --dropout 0.5 --rounds 20 --clients-per-round 10

    Example: edge-fl serve --resume runs/20260101-120000-abcd
    """
    from rich.console import Console

    from broker.live import view
    from broker.log_view import LogView
    from broker.observer import Observers
    from broker.open_broker import EMBEDDED, OpenBroker, open_broker
    from broker.prometheus import metrics_server
    from broker.run_folder import new_run_id
    from edge_fl.recipes.named import recipe_and_parameters
    from edge_fl.recipes.own import plain_robust
    from edge_fl.runs.config import RunConfig, bounds_beside
    from edge_fl.runs.run import Run, place_of

    console = Console(stderr=True)
    run = new_run_id()
    root = resume or output or Path("runs") / run
    if resume is not None:
        refuse_settings(context, [*_OF_A_PROCESS, "bundle", "resume"])
        config = None
    else:
        if buffer:
            refuse_given(context, ["quorum"], "has no say: a buffered round closes with its buffer")
        given = parameters_of(dropout=dropout, widths=widths, mode=mode, rule=rule, settings=set_)
        recipe, parameters, code = recipe_and_parameters(method, given)
        robust_rule, of_rule = plain_robust(robust)
        aggregation = secure_of(
            context,
            secure,
            holders=secure_holders,
            threshold=secure_threshold,
            reach=secure_reach,
            cohort=secure_cohort,
        )
        privacy = privacy_of(
            context,
            dp,
            epsilon=dp_epsilon,
            noise=dp_noise,
            delta=dp_delta,
            clip=dp_clip,
            quantile=dp_quantile,
            devices=dp_devices,
        )
        config = RunConfig(
            run=run,
            method=recipe,
            code=(*code, *of_rule),
            parameters=parameters,
            rounds=rounds,
            clients_per_round=clients_per_round,
            local_steps=local_steps,
            batch=batch,
            lr=lr,
            lr_drops=tuple(lr_drop or ()),
            lr_warmup=lr_warmup,
            statistics_every=statistics_every,
            collect_statistics=collect_statistics,
            seed=seed,
            test_data=test_data,
            scores=tuple(score or ()),
            evaluate_every=evaluate_every,
            initial_weights=place_of(initial_weights),
            keep_best=keep_best,
            patience=patience,
            max_devices=max_devices,
            max_samples=max_samples,
            **bounds_beside(
                privacy,
                aggregation,
                samples_bound=samples_bound or None,
                norm_bound=norm_bound or None,
                rollback=rollback or None,
            ),
            robust=robust_rule,
            attackers=attackers,
            exact_sums=exact_sums,
            secure=aggregation,
            privacy=privacy,
            evaluate_on=evaluate_on,
            deadline=deadline,
            buffer=buffer,
            quorum=quorum,
            wait=wait,
            min_clients=min_clients,
            tiers=tiers,
            selection=selection,
        )
    access = access_of(
        identity=identity, ca=ca, cert=cert, key=key, user=user, password_file=password_file, insecure=insecure
    )
    fleet = fleet_of(identity, fleet)
    coordinate = _coordination(bundle, config, root, models)
    found: OpenBroker | None = None
    with ExitStack() as stack:

        def address() -> OpenBroker:
            nonlocal found
            found = open_broker(
                broker or broker_of(identity) or EMBEDDED,
                stack,
                access=access,
                host=host,
                port=port,
                passwords=passwords,
                fleet=fleet,
            )
            console.print(f"broker {found.listens}", highlight=False)
            return found

        watching = [stack.enter_context(view(console, live=not json, devices=log_level == "info"))]
        if log_file is not None or log_format is LogFormat.JSON:
            stack.enter_context(logging_to(log_file, log_format))
            watching.append(LogView())
        if metrics is not None:
            watching.append(stack.enter_context(metrics_server(metrics)))
        try:
            summary = coordinate(
                address=address,
                observer=Observers(*watching),
                fleet=fleet,
                connect_timeout=connect_timeout,
                database=database,
                workers=workers,
            )
        except (KeyboardInterrupt, RunError, StateError):
            if found is not None and (root / "config.json").exists():
                console.print(
                    f"Continue it with: edge-fl serve --resume {root}{given_again(context, _OF_A_PROCESS)}",
                    highlight=False,
                    soft_wrap=True,
                )
            raise
    plot = Run(summary.folder).plot(dense=summary.dense)
    show_summary(summary.figures(), [*summary.lines(), f"plot {plot}"], as_json=json)


def _coordination(
    bundle: Path | None, config: "RunConfig | None", root: Path, models: str | None
) -> "Callable[..., RunSummary]":
    """What runs ``config``, or, where that is None, goes on with the run in ``root``."""
    from broker.session import resume, serve
    from edge_fl.core.bundle import Bundle

    if config is None:
        return partial(resume, root, bundle=bundle, models=models)
    if bundle is None:
        raise ConfigError("A run needs a bundle to train, or --resume with the folder of a run.")
    return partial(serve, bundle=Bundle.load(bundle), config=config, root=root, models=models)
