"""Groups of commands that import a command only when it is called."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from edge_fl.cli.defaults import take_defaults
from edge_fl.cli.once import OnceCommand
from edge_fl.cli.panels import group_options
from edge_fl.core.packages import ours

__all__ = ["Named", "group_of"]


class Named(NamedTuple):
    """A command: ``module:OBJECT``, a function or an app of Typer, and the line that help shows of it."""

    target: str
    help: str


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
            if name is not None:
                command = _loaded(name, commands[name].target)
                # The root's own path is `edge-fl`, or `python -m edge_fl`.
                above = ctx.command_path.removeprefix(ctx.find_root().command_path).split()
                take_defaults(command, " ".join([*above, name]))
                group_options(command)
            return name, command, rest

    return Group


def _loaded(name: str, target: str) -> Any:
    module, _, member = target.partition(":")
    found = getattr(ours(module), member)
    if isinstance(found, typer.Typer):
        command = typer.main.get_command(found)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        single.command(name, cls=OnceCommand)(found)
        command = typer.main.get_command(single)
    command.name = name
    return command
