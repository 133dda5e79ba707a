"""`edge-fl device build-runtime`: compiles what `--runtime executorch` needs, ahead of its first use."""

from functools import partial

import typer

__all__ = ["build_runtime"]


def build_runtime() -> None:
    """Compile the ExecuTorch runtime into the user's cache (needs g++, or the compiler that CXX names).

    A device that trains with --runtime executorch does so by itself when it has to.
    """
    from edge_fl.runtimes._executorch import build

    typer.echo(str(build.build_runtime(partial(typer.echo, err=True))))
