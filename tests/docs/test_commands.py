"""Every command block of README.md and of docs/ runs, page by page, as a reader would run it: from top to bottom.

A comment right before a block says what else is to be done with it:

- ``<!-- not run: needs a Jetson -->``: nothing, and why;
- ``<!-- side by side -->``: each line is a terminal of its own; once the first has ended, the others are stopped;
- ``<!-- file: model.py -->``: the block is a file of that name;
- ``<!-- run -->``: the block is Python, and runs.

Blocks of ```sh run in bash, in one folder a page, which has the repository's ``examples/``. Other Python need only
compile.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PORT, TLS_PORT, ENROL_PORT = "1883", "8883", "8884"
LONGEST = 240.0  # seconds, of one block

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_MARKS = r"|not run: .+|side by side|file: [\w.-]+|run"
_INDENTED = re.compile(r"\n\n((?:    [^\n]*\n)+)")
_COMMAND = re.compile(r"(edge-fl|make|pip|python3?) ")


@dataclass(frozen=True)
class Block:
    """One block of a page: what it is written in, and what its comment says."""

    language: str
    mark: str
    text: str

    @property
    def is_run(self) -> bool:
        """Whether anything is done with it."""
        return not self.mark.startswith("not run: ") and (
            self.language == "sh" or self.mark == "run" or self.mark.startswith("file: ")
        )


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    return [
        Block(found["language"], found["mark"] or "", found["text"]) for found in _BLOCK.finditer(page.read_text())
    ]


class Reader:
    """Somebody with a folder, this environment, and a port that nobody else uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe, socket.socket() as other, socket.socket() as third:
            probes = (probe, other, third)
            for each in probes:
                each.bind(("127.0.0.1", 0))
            self.port, self.tls_port, self.enrol_port = (str(each.getsockname()[1]) for each in probes)
        shutil.copytree(ROOT / "examples", folder / "examples")
        programs = folder.parent / f"{folder.name}-programs"
        programs.mkdir()
        for name, command in {"python": "", "edge-fl": " -m edge_fl"}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{command} "$@"\n')
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{folder}",
            "XDG_STATE_HOME": str(folder / "state-home"),
            "MPLBACKEND": "agg",
        }

    def follow(self, block: Block) -> None:
        """Do what a block says, or fail with what it printed."""
        if block.mark.startswith("file: "):
            (self.folder / block.mark.removeprefix("file: ")).write_text(block.text)
        elif block.mark == "side by side":
            self.side_by_side([line for line in block.text.splitlines() if line.strip()])
        elif block.language == "sh":
            self.call(["bash", "-euo", "pipefail", "-c", self.ported(block.text)], block.text)
        else:
            self.call([sys.executable, "-c", block.text], block.text)

    def call(self, command: list[str], said: str) -> None:
        """Run one command to its end."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert done.returncode == 0, f"{said}\nends with {done.returncode}:\n{done.stdout[-4000:]}"

    def side_by_side(self, lines: list[str]) -> None:
        """Each line in a process of its own, until the first has ended."""
        logs = [self.folder / f"terminal-{number}.log" for number in range(len(lines))]
        terminals = []
        try:
            for line, log in zip(lines, logs, strict=True):
                with log.open("w") as out:
                    terminals.append(
                        subprocess.Popen(
                            ["bash", "-c", f"exec {self.ported(line)}"],
                            cwd=self.folder,
                            env=self.environment,
                            stdout=out,
                            stderr=subprocess.STDOUT,
                        )
                    )
            code = terminals[0].wait(LONGEST)
        finally:
            for terminal in terminals:
                terminal.send_signal(signal.SIGTERM)
            for terminal in terminals:
                terminal.wait(30)
        printed = "\n".join(f"$ {line}\n{log.read_text()[-2000:]}" for line, log in zip(lines, logs, strict=True))
        assert code == 0, f"The first ends with {code}:\n{printed}"

    def ported(self, text: str) -> str:
        """The same on this reader's own ports."""
        text = text.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self.port}")
        text = text.replace(TLS_PORT, self.tls_port).replace(
            f"--enrol-port {ENROL_PORT}", f"--enrol-port {self.enrol_port}"
        )

        def listening(serve: re.Match[str]) -> str:
            secure = "--cert" in serve[0] or "--identity" in serve[0]
            return f"{serve[0]} --port {self.tls_port if secure else self.port}"

        return re.sub(r"^edge-fl serve (?!.*--broker mqtt).*$", listening, text, flags=re.MULTILINE)


def run_page(page: Path, folder: Path) -> None:
    """Do all that a page says."""
    folder.mkdir()
    reader = Reader(folder)
    for block in blocks(page):
        if block.is_run:
            reader.follow(block)


def running(page: Path) -> bool:
    """Whether a page has anything to run."""
    return any(block.is_run and not block.mark.startswith("file: ") for block in blocks(page))


def named(page: Path) -> str:
    """A page as reports call it."""
    return str(page.relative_to(ROOT))


def test_the_readme(tmp_path: Path) -> None:
    run_page(README, tmp_path / "reader")


@pytest.mark.packaging
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if running(page)], ids=named)
def test_a_page(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path / "reader")


@pytest.mark.parametrize("page", [README, *PAGES], ids=named)
def test_blocks_are_marked_as_the_convention_has_it(page: Path) -> None:
    for block in blocks(page):
        assert re.fullmatch(_MARKS, block.mark), block.mark
        if block.language == "python":
            compile(block.text, str(page), "exec")
    hidden = [block for block in _INDENTED.findall(page.read_text()) if _COMMAND.match(block.strip())]
    assert not hidden, "A command stands in a fence of ```sh, or it is not run."
