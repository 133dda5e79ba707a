"""Groups of commands that import a command only when it is called."""

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from edge_fl.core.errors import ConfigError, EdgeFLError

__all__ = ["Named", "group_of", "ours"]

_OURS = ("broker", "exporter", "device_sim", "benchmarks")


class Named(NamedTuple):
    """A command: ``module:OBJECT``, a function or an app of Typer, and the line that help shows of it."""

    target: str
    help: str


def ours(module: str) -> ModuleType:
    """Import one of our modules.

    Raises
    ------
    EdgeFLError
        When a file of the user's has the name of one of our packages and is found first, or when the package is not
        installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package or package not in _OURS:
            raise
        raise _elsewhere(package) from error


def _elsewhere(package: str) -> EdgeFLError:
    found = importlib.util.find_spec(package)
    if found is None:
        return ConfigError(
            f"'{package}' is not part of the installed package: run this command in a checkout of edge-fl."
        )
    shadow = found.origin or next(iter(found.submodule_search_locations or ()), "?")
    return ConfigError(f"'{Path(shadow)}' hides edge-fl's package '{package}': rename that file or folder.")


def group_of(commands: Mapping[str, Named]) -> type[TyperGroup]:
    """A group of ``commands``, in this order."""

    class Group(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            named = commands.get(cmd_name)  # help needs a line of it, and no import
            return None if named is None else TyperCommand(name=cmd_name, help=named.help)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, command, rest = super().resolve_command(ctx, args)
            return name, command if name is None else _loaded(name, commands[name].target), rest

    return Group


def _loaded(name: str, target: str) -> Any:
    module, _, member = target.partition(":")
    found = getattr(ours(module), member)
    if isinstance(found, typer.Typer):
        command = typer.main.get_command(found)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        single.command(name)(found)
        command = typer.main.get_command(single)
    command.name = name
    return command
