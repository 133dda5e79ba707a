"""`edge-fl device`: the agent. Imports nothing heavier than the runtime it is told to use."""

from typing import Annotated

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
    device_broker,
    fleet_of,
)
from edge_fl.commands.build_runtime import build_runtime
from edge_fl.commands.device_options import (
    ConnectTimeout,
    Id,
    InProcess,
    ProgramMemory,
    RequireNoise,
    RequireSecureAggregation,
    RuntimeName,
    State,
    TestShare,
    bytes_of,
    client_of,
    state_of,
)
from edge_fl.commands.doctor import doctor
from edge_fl.commands.enrol import enrol
from edge_fl.commands.log import LogFile, LogFormat, LogFormatOption, logging_to

__all__ = ["app"]

app = typer.Typer(subcommand_metavar="[COMMAND]", rich_markup_mode="markdown")
app.command("build-runtime")(build_runtime)
app.command("doctor")(doctor)
app.command("enrol")(enrol)


@app.callback(invoke_without_command=True)
def device(
    context: typer.Context,
    *,
    broker: Annotated[
        str,
        typer.Option(help="The MQTT broker, mqtts://host:port, mqtt:// or wss:// (required).", show_default=False),
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            help="The data to train on: NAME, NAME:i/n for part i of n, or NAME:i/n:owners; or its own, such as "
            "csv:FILE?label=COLUMN, see docs/data.md (required).",
            show_default=False,
        ),
    ] = "",
    id: Id = None,
    state: State = None,
    runtime: RuntimeName = "onnx",
    tier: Annotated[
        int, typer.Option(min=0, max=63, help="Class of hardware: picks the dropout rate of that tier.")
    ] = 0,
    test_share: TestShare = 0.0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads a train step may use.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Exit when the run is over.")] = False,
    keep_model: Annotated[
        bool,
        typer.Option("--keep-model", help="Keep the final model in the state folder, for edge_fl.Device.predict."),
    ] = False,
    least_battery: Annotated[
        int | None, typer.Option(min=0, max=100, help="Decline a task below this percent, unless charged.")
    ] = None,
    unmetered: Annotated[bool, typer.Option("--unmetered", help="Decline tasks on a metered network.")] = False,
    most_busy: Annotated[
        float | None, typer.Option(min=0, max=1, help="Decline while others use more of the CPUs than this share.")
    ] = None,
    require_noise: RequireNoise = None,
    require_secure_aggregation: RequireSecureAggregation = None,
    in_process: InProcess = False,
    task_limit: Annotated[
        float, typer.Option(min=1, help="Seconds after which a bundle's programs are ended, and the task fails.")
    ] = 3600.0,
    program_memory: ProgramMemory = None,
    identity: IdentityFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    user: User = None,
    password_file: PasswordFile = None,
    insecure: Insecure = False,
    connect_timeout: ConnectTimeout = 15.0,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Your own method, compressor or metric that tasks may name, such as mine.py:Mine; repeat for "
            "several, or join a method and a compressor by +.",
            show_default=False,
        ),
    ] = None,
    fleet: Fleet = None,
    log_file: LogFile = None,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve as one device of a fleet: train what the coordinator asks, upload the rows that were kept.

    Example: edge-fl device --broker mqtt://127.0.0.1:1883 --data fashion-mnist:0/10
    """
    if context.invoked_subcommand is not None:
        return
    named = device_broker(identity)
    broker = broker or named
    for options, value in (("'--broker' or '--identity'", broker), ("'--data'", data)):
        if not value:  # typer would ask a subcommand for it too, were it declared as required
            raise typer.BadParameter("it is required.", param_hint=options)
    from edge_fl.agent.agent import Agent, AgentSettings
    from edge_fl.agent.consent import Conditions
    from edge_fl.agent.demands import Demands
    from edge_fl.agent.opening import in_process_of_its_own, in_this_process
    from edge_fl.data.sources.base import open_source
    from edge_fl.recipes.own import each_spec, use_code
    from edge_fl.runtimes.base import RUNTIMES
    from edge_fl.transport.address import BrokerAddress

    access = access_of(
        identity=identity, ca=ca, cert=cert, key=key, user=user, password_file=password_file, insecure=insecure
    )
    RUNTIMES.check(runtime)
    use_code(each_spec(method or []))
    client = client_of(id, data, state, known=access.identity)
    settings = AgentSettings(
        broker=BrokerAddress.parse(broker, access),
        client=client,
        state=state_of(state, client),
        runtime=runtime,
        tier=tier,
        once=once,
        threads=threads,
        connect_timeout=connect_timeout,
        fleet=fleet_of(identity, fleet),
        test_share=test_share,
        keep_model=keep_model,
        task_limit=task_limit,
        program_memory=bytes_of(program_memory),
        demands=Demands(require_noise, require_secure_aggregation),
    )
    opener = in_this_process() if in_process else in_process_of_its_own
    conditions = Conditions(least_battery, unmetered, most_busy)
    with logging_to(log_file, log_format, client=client):
        Agent(settings, open_source(data), open=opener, consent=conditions.check).run()
