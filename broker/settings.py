"""What a run was begun with, as its record keeps it: a fleet's, and what it has in common with a simulation's."""

from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BundleError, StateError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.runs.config import RunConfig

__all__ = ["Begun", "RunSettings", "open_bundle", "read_settings"]

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


class Begun(msgspec.Struct, frozen=True):
    """The command that began a run."""

    kind: Literal["serve", "simulate"]


class RunSettings(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="serve"
):
    """What a run was begun with: ``bundle`` is its folder, ``manifest`` the SHA-256 of its manifest, ``models`` where
    models are kept (None: in the run folder), ``initial`` the SHA-256 of the initial weights that the run folder keeps
    (empty: the bundle's).
    """

    bundle: str
    manifest: str
    config: RunConfig
    models: str | None = None
    initial: str = ""


def read_settings(content: bytes, kind: type[_Settings], root: Path) -> _Settings:
    """Settings that a run was begun with; StateError when they are of another kind of run, or version."""
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        own, command = kind.__struct_config__.tag, _command(content)
        if own and command and command != own:
            raise StateError(
                f"The run in '{root}' was begun by another command: go on with edge-fl {command} --resume {root}."
            ) from error
        raise StateError(f"The run in '{root}' was begun by another version of edge-fl ({error}).") from error


def open_bundle(settings: RunSettings, root: Path, bundle: Path | None) -> Bundle:
    """The bundle of the run in ``root``, at ``bundle`` or where it was; BundleError when it is another."""
    found = Bundle.load(bundle or Path(settings.bundle))
    if found.digest != settings.manifest:
        raise BundleError(
            f"The run in '{root}' trains another bundle than the one at '{found.root}': go on with a copy of its own, "
            "or export the same model with the same options and versions again."
        )
    return found


def _command(content: bytes) -> str:
    """The command whose settings these are; empty where they do not say."""
    try:
        return msgspec.json.decode(content, type=Begun).kind
    except UNREADABLE:
        return ""
