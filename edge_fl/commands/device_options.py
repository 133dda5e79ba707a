"""What the commands of a device read alike from their options."""

import hashlib
import platform
import re
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Annotated

import typer

from edge_fl.agent.state import owner_of, state_home
from edge_fl.commands.options import runtime_name
from edge_fl.core.errors import ConfigError, StateError

__all__ = [
    "ConnectTimeout",
    "Id",
    "InProcess",
    "ProgramMemory",
    "RequireNoise",
    "RequireSecureAggregation",
    "RuntimeName",
    "State",
    "TestShare",
    "bytes_of",
    "client_of",
    "state_of",
]

Id = Annotated[
    str | None,
    typer.Option(
        help="This device's id [default: the identity's, the state folder's, or one of host name and data]."
    ),
]
State = Annotated[Path | None, typer.Option(help="State folder [default: ~/.local/state/edge-fl/ID].")]
RuntimeName = Annotated[str, typer.Option(help="The runtime to train in.", parser=runtime_name)]
TestShare = Annotated[
    float, typer.Option(help="Share of the data to keep out of training, for evaluating models on it.")
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="Run a bundle's programs in the agent's process: only for a coordinator that you trust.",
    ),
]
ProgramMemory = Annotated[
    int | None,
    typer.Option(
        min=64,
        help="MiB that a bundle's programs may take, besides the runtime's own [default: three quarters of the "
        "memory, 512 at the least].",
        show_default=False,
    ),
]
RequireNoise = Annotated[
    float | None,
    typer.Option(
        help="Fail tasks that add less noise to the update than so many times its clip (serve --dp local).",
        show_default=False,
    ),
]
RequireSecureAggregation = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Fail tasks whose update is not masked, and masked rows that fewer devices hold (needs --identity).",
        show_default=False,
    ),
]
ConnectTimeout = Annotated[float, typer.Option(help="Seconds to try the first connection for.")]

_SHARE = re.compile(r"[\w-]+(:\d+/\d+(:\w+)?)?")  # of a data set by name


def client_of(id: str | None, data: str, state: Path | None, *, known: str | None = None) -> str:
    """The device's id: as it is given, as the broker knows it (``known``), or as its state folder has it.

    Raises ConfigError where it cannot be one, or the broker would know the device by another name.
    """
    from edge_fl.wire.messages import check_id

    if id is not None and known not in (None, id):
        raise ConfigError(f"The broker knows this device as '{known}': leave --id out, or let it be that.")
    if (given := known if id is None else id) is not None:
        return check_id(given)
    owner = None
    if state is not None:
        with suppress(StateError):  # of which whoever opens the folder speaks
            owner = owner_of(state)
    return check_id(_new_id(data) if owner is None else owner)


def bytes_of(program_memory: int | None) -> int | None:
    """Bytes of MiB."""
    return None if program_memory is None else program_memory << 20


def state_of(state: Path | None, client: str) -> Path:
    """The device's state folder."""
    return state if state is not None else state_home() / client


def _new_id(data: str) -> str:
    """Host and data, of which folders and options stay here; a hash of all of it tells devices apart."""
    host, place = platform.node() or "device", data.partition("?")[0]
    last = place if _SHARE.fullmatch(place) else PurePath(place).stem
    words = (re.sub(r"[^A-Za-z0-9_.-]+", "-", word)[:28].strip("-.") for word in (host, last))
    return "-".join((*words, hashlib.sha256(f"{host} {data}".encode()).hexdigest()[:6])).lstrip("-.")
