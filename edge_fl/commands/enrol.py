"""`edge-fl device enrol`: a device gets its identity by a one-time token."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.device_options import ConnectTimeout

__all__ = ["enrol"]


def enrol(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The identity's file, which must not exist.")],
    token_file: Annotated[
        str | None,
        typer.Option(
            help="File with the token, - for standard input [default: the variable EDGE_FL_TOKEN].",
            show_default=False,
        ),
    ] = None,
    connect_timeout: ConnectTimeout = 15.0,
) -> None:
    """Get this device's identity by a one-time token; its key is made here, and never leaves this device.

    Example: edge-fl device enrol --token-file tea.token -o tea.pem
    """
    from edge_fl.identity.enrolment import enrol as enrol_by
    from edge_fl.identity.token import read_token

    token = read_token(token_file)
    enrol_by(token, output, timeout=connect_timeout)
    typer.echo(f"{output}: this device is '{token.name}'. Start edge-fl device --identity {output} --data ...")
