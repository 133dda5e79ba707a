"""Where a command finds options that its command line leaves out: the environment, then a TOML file."""

import tomllib
from collections.abc import Container, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_fl.core.errors import ConfigError, said

__all__ = ["take_defaults"]


def take_defaults(command: Any, path: str) -> None:
    """Let ``command`` take options from EDGE_FL_COMMAND_OPTION, and from the file of an option ``--config``.

    ``path`` is how it is called, such as ``serve`` or ``bench table1``; a command line beats the environment, and that
    the file.
    """
    prefix = f"edge_fl_{path}".replace(" ", "_").replace("-", "_").upper()
    below = getattr(command, "commands", {})
    for name, other in below.items():
        take_defaults(other, f"{path} {name}")
    options = [parameter for parameter in command.params if parameter.name != "help"]
    for parameter in options:
        parameter.envvar, parameter.show_envvar = f"{prefix}_{parameter.name.strip('_').upper()}", False
    if options:
        command.params.append(_config_option(options, path, below))


def _config_option(parameters: Sequence[Any], path: str, below: Container[str]) -> Any:
    """The option ``--config`` of a command, whose subcommands are ``below``."""
    known = {name: parameter for parameter in parameters for name in _names(parameter)}

    def read(context: typer.Context, file: Path | None) -> None:
        if file is not None:
            root = context.find_root()
            given = _table(file, path, root.command.list_commands(root))  # type: ignore[attr-defined]
            context.default_map = {
                _find(known, name, path, file).name: _values(known[name], value)
                for name, value in given.items()
                if name not in below
            }

    holder = typer.Typer(add_completion=False)

    @holder.command()
    def _(
        *,
        config: Annotated[
            Path | None,
            typer.Option(
                help=f"Take options from the table '{path.replace(' ', '.')}' of this TOML file, by the same names.",
                envvar="EDGE_FL_CONFIG",
                is_eager=True,
                expose_value=False,
                callback=read,
            ),
        ] = None,
    ) -> None:
        """Hold the option."""

    return next(parameter for parameter in typer.main.get_command(holder).params if parameter.name == "config")


def _names(parameter: Any) -> list[str]:
    """What a file calls an option or an argument: ``clients-per-round``."""
    return [name[2:] for name in parameter.opts if name.startswith("--")] or [str(parameter.name)]


def _table(file: Path, path: str, commands: Sequence[str]) -> Mapping[str, Any]:
    """The table of the command called ``path``; nothing where the file has options of other ``commands`` alone."""
    try:
        found: Any = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"'{file}' cannot be read: {said(error)}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{file}' is no TOML: {said(error)}.") from error
    if unknown := [name for name in found if name not in commands]:
        hint = get_close_matches(unknown[0], commands, 1) or [path.split(maxsplit=1)[0]]
        raise ConfigError(
            f"'{file}' has '{unknown[0]}', which is no command: options are in tables such as [{hint[0]}]."
        )
    for name in path.split():
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise ConfigError(f"'{file}' gives '{name}' a value: options of a command are a table, [{name}].")
    return dict(found)


def _find(known: Mapping[str, Any], name: str, path: str, file: Path) -> Any:
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f": perhaps '{near[0]}'" if near else f": `edge-fl {path} --help` lists its options"
        raise ConfigError(f"'{name}', in '{file}', is no option of `edge-fl {path}`{hint}.")
    return known[name]


def _values(parameter: Any, value: Any) -> Any:
    """A value as a command line would have it: a list is repeated or has commas, a table is key=value, repeated."""
    if isinstance(value, dict):
        value = [f"{key}={_text(one)}" for key, one in value.items()]
    if parameter.multiple:
        return [_text(one) for one in (value if isinstance(value, list) else [value])]
    return _text(value)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
