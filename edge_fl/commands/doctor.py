"""`edge-fl device doctor`: whether an agent would do well here, before it is left alone."""

import json as json_module
from dataclasses import asdict
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
from edge_fl.commands.device_options import (
    ConnectTimeout,
    Id,
    InProcess,
    ProgramMemory,
    RuntimeName,
    State,
    TestShare,
    bytes_of,
    client_of,
    state_of,
)
from edge_fl.commands.tables import show_table

__all__ = ["doctor"]


def doctor(
    *,
    data: Annotated[str, typer.Option(help="The data to train on.")],
    broker: Annotated[
        str, typer.Option(help="The MQTT broker, mqtts://host:port, mqtt:// or wss:// [default: the identity's].")
    ] = "",
    id: Id = None,
    state: State = None,
    runtime: RuntimeName = "onnx",
    test_share: TestShare = 0.0,
    in_process: InProcess = False,
    program_memory: ProgramMemory = None,
    identity: IdentityFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    user: User = None,
    password_file: PasswordFile = None,
    insecure: Insecure = False,
    connect_timeout: ConnectTimeout = 15.0,
    fleet: Fleet = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON, and nothing else.")] = False,
) -> None:
    """Look at broker, certificate, clock, runtime, programs, data, state folder, disk and memory.

    Takes an agent's own options, and exits with the code that the agent would end with. An agent that runs already is
    not disturbed.

    Example: edge-fl device doctor --broker mqtt://127.0.0.1:1883 --data fashion-mnist:0/10
    """
    named = device_broker(identity)
    broker = broker or named
    if not broker:
        raise typer.BadParameter("it is required.", param_hint="'--broker' or '--identity'")
    from edge_fl.agent.doctor import Examined, examine
    from edge_fl.transport.address import BrokerAddress

    access = access_of(
        identity=identity, ca=ca, cert=cert, key=key, user=user, password_file=password_file, insecure=insecure
    )
    client = client_of(id, data, state, known=access.identity)
    agent = Examined(
        broker=BrokerAddress.parse(broker, access),
        client=client,
        data=data,
        state=state_of(state, client),
        runtime=runtime,
        fleet=fleet_of(identity, fleet),
        connect_timeout=connect_timeout,
        test_share=test_share,
        in_process=in_process,
        program_memory=bytes_of(program_memory),
    )
    findings = list(examine(agent))
    if json:
        typer.echo(json_module.dumps([asdict(finding) for finding in findings]))
    else:
        show_table(client, ["check", "", "finding"], [[f.check, f.level, f.sentence] for f in findings])
    raise typer.Exit(next((finding.code for finding in findings if finding.code), 0))
