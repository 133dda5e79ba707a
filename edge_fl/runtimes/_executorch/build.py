"""Compile the C shim against the installed executorch wheel, once, into the user's cache."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from importlib import metadata, resources
from pathlib import Path

from edge_fl.core.errors import RuntimeMissingError

__all__ = ["EXECUTORCH", "build_runtime"]

EXECUTORCH = "1.5.1"
"""The version the shim is written for: its C++ interfaces change from one to the next."""
_LIBRARIES = ("executorch", "executorch_threadpool", "executorch_kernels_optimized", "executorch_backend_xnnpack")


def build_runtime(report: Callable[[str], None]) -> Path:
    """The compiled shim, compiled now if it is not yet in the cache.

    It lies in ``$XDG_CACHE_HOME/edge-fl`` (``~/.cache/edge-fl``), named by what went into it: the wheel's version and
    place, the source, the flags and the architecture. Neither torch nor executorch is imported. Any number of
    processes may build at once.

    Parameters
    ----------
    report
        Is given a sentence before the compiler is run, which takes some seconds.

    Raises
    ------
    RuntimeMissingError
        When the wheel, one of its libraries or a compiler is missing, the wheel has another version, the compiler
        fails, or what it made cannot be loaded.
    """
    wheel = _wheel()
    source = resources.files(__package__).joinpath("shim.cpp").read_bytes()
    flags = _flags(wheel)
    key = hashlib.sha256(source + "\0".join(flags).encode()).hexdigest()[:16]
    built = _cache() / f"executorch-{EXECUTORCH}-{sysconfig.get_platform()}-{key}.so"
    if not built.exists():
        compiler = _compiler()
        report(f"Compiling the ExecuTorch runtime with {compiler[0]} into '{built}'; this is done once.")
        try:
            built.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
                made = Path(scratch) / built.name
                _compile([*compiler, "-x", "c++", "-", *flags, "-o", str(made)], source)
                _try(made)
                made.replace(built)  # whole or not at all; the last of several that build at once stays
        except OSError as error:
            raise RuntimeMissingError(
                f"The ExecuTorch runtime cannot be built in '{built.parent}': {error.strerror}."
            ) from error
    return built


def _wheel() -> Path:
    """The folder of the installed package, found without importing it: parts of it import torch."""
    try:
        wheel = metadata.distribution("executorch")
    except metadata.PackageNotFoundError as error:
        raise RuntimeMissingError(
            f"The package executorch is not installed; install edge-fl[executorch], which brings {EXECUTORCH}."
        ) from error
    if wheel.version.partition("+")[0] != EXECUTORCH:
        raise RuntimeMissingError(
            f"executorch {wheel.version} is installed, and this edge-fl is written for {EXECUTORCH}: install that."
        )
    folder = Path(str(wheel.locate_file("executorch")))
    for library in _LIBRARIES:
        if not (folder / "lib" / f"lib{library}.so").is_file():
            raise RuntimeMissingError(
                f"The installed executorch has no '{folder / 'lib' / f'lib{library}.so'}'; install a wheel for Linux "
                "that brings its C++ libraries."
            )
    return folder


def _flags(wheel: Path) -> list[str]:
    include = wheel / "include"
    return [
        *("-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-DC10_USING_CUSTOM_GENERATED_MACROS"),
        *("-isystem", str(include)),
        *("-isystem", str(include / "executorch" / "runtime" / "core" / "portable_type" / "c10")),
        f"-L{wheel / 'lib'}",
        f"-Wl,-rpath,{wheel / 'lib'}",
        "-Wl,--no-as-needed",  # kernels and XNNPACK register themselves as they are loaded: nothing refers to them
        *(f"-l{library}" for library in _LIBRARIES),
        "-Wl,-z,defs",
    ]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "edge-fl"


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(command[0]) is None:
        raise RuntimeMissingError(
            f"The ExecuTorch runtime needs a C++ compiler once, and there is no '{command[0]}': install g++, or name "
            "another in CXX."
        )
    return command


def _compile(command: list[str], source: bytes) -> None:
    done = subprocess.run(command, input=source, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeMissingError(
            f"{command[0]} cannot compile the ExecuTorch runtime: {_telling_line(done.stderr, command[0])}."
        )


def _try(library: Path) -> None:
    """Load it in a process of its own, so that what does not load leaves nothing behind in this one."""
    command = [sys.executable, "-I", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(library)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RuntimeMissingError(f"The ExecuTorch runtime was compiled but cannot be loaded: {last[0]}.")


def _telling_line(stderr: bytes, command: str) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    telling = [line for line in lines if "error" in line or line.startswith(f"{command}:")]
    return (telling or lines or ["it says nothing"])[0].rstrip(".")
