"""Options that come from the environment or from a TOML file."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from edge_fl.cli.defaults import take_defaults
from edge_fl.core.errors import ConfigError

BY_DEFAULT = {"clients_per_round": 10, "lr": 0.1, "dropout": None, "set_": None, "once": False}


def toy(*given: str) -> dict[str, Any]:
    """What a command of these options gets."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def toy(
        *,
        clients_per_round: int = 10,
        lr: float = 0.1,
        dropout: str | None = None,
        set_: Annotated[list[str] | None, typer.Option("--set")] = None,
        once: Annotated[bool, typer.Option("--once")] = False,
    ) -> dict[str, Any]:
        return locals()

    @app.command()
    def serve() -> None: ...

    group: Any = typer.main.get_command(app)
    take_defaults(group.commands["toy"], "toy")
    found: dict[str, Any] = group.main(["toy", *given], prog_name="edge-fl", standalone_mode=False)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "options.toml"


def test_a_command_line_beats_the_environment_and_the_environment_beats_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[toy]\nclients-per-round = 3\nlr = 1\nonce = true\n")
    assert toy() == BY_DEFAULT
    assert toy("--config", str(file)) == BY_DEFAULT | {"clients_per_round": 3, "lr": 1.0, "once": True}
    monkeypatch.setenv("EDGE_FL_CONFIG", str(file))
    monkeypatch.setenv("EDGE_FL_TOY_CLIENTS_PER_ROUND", "4")
    monkeypatch.setenv("EDGE_FL_TOY_LR", "2")
    assert toy("--lr", "3") == BY_DEFAULT | {"clients_per_round": 4, "lr": 3.0, "once": True}


def test_lists_and_tables_of_a_file_are_what_a_command_line_would_have(file: Path) -> None:
    file.write_text('[toy]\ndropout = [0.2, 0.5]\nset = {mode = "units", levels = ["a", "b"]}\n')
    given = {"dropout": "0.2,0.5", "set_": ["mode=units", "levels=a,b"]}
    assert toy("--config", str(file)) == BY_DEFAULT | given


def test_tables_of_other_commands_are_left_alone(file: Path) -> None:
    file.write_text("[serve]\nrounds = 3\n")
    assert toy("--config", str(file)) == BY_DEFAULT


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[toy]\nclient-per-round = 3", "'client-per-round', in .* no option .* perhaps 'clients-per-round'"),
        ("[toy]\nhelp = true", "'help', in .* is no option of `edge-fl toy`"),
        ("[toy.below]\nlr = 3", "'below', in .* is no option"),
        ("[sevre]\nrounds = 3", "has 'sevre', which is no command: options are in tables such as \\[serve\\]"),
        ("rounds = 3", "has 'rounds', which is no command: options are in tables such as \\[toy\\]"),
        ("toy = 3", "options of a command are a table, \\[toy\\]"),
        ("[toy", "is no TOML: "),
    ],
)
def test_a_file_that_makes_no_sense_is_one_sentence(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        toy("--config", str(file))
    with pytest.raises(ConfigError, match="cannot be read: "):
        toy("--config", str(file.parent / "absent.toml"))


@pytest.mark.parametrize("text", ["clients-per-round = 2.5", "clients-per-round = true", "lr = '3 or so'"])
def test_a_value_of_another_kind_is_refused_as_on_a_command_line(file: Path, text: str) -> None:
    file.write_text(f"[toy]\n{text}\n")
    with pytest.raises(Exception, match="valid"):
        toy("--config", str(file))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("[doctor]\nloud = true\n", "has 'doctor', which is no command"),
        ("[device.doctor]\nloud = true\n", "'loud'"),
    ],
)
def test_a_module_that_is_run_reads_the_same_tables(file: Path, table: str, says: str) -> None:
    """Its root is called ``python -m edge_fl``, which is no command."""
    file.write_text(table)
    done = subprocess.run(
        [sys.executable, "-m", "edge_fl", "device", "doctor", "--config", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert says in done.stderr
