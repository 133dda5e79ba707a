"""A command in the process of the tests, for refusals by the dozen: each process would take a second to start."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from edge_fl.cli.main import run


def command(*words: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What `edge-fl WORDS` in ``folder`` prints and returns."""
    argv, here, on_term = ["edge-fl", *map(str, words)], Path.cwd(), signal.getsignal(signal.SIGTERM)
    root, raises = logging.getLogger(), logging.raiseExceptions
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # else a command that writes a log would close those of pytest
    out, err, code = io.StringIO(), io.StringIO(), 0
    os.chdir(folder or here)
    try:
        with (
            mock.patch.object(sys, "argv", argv),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                run()
            except SystemExit as end:
                if end.code == 130:
                    raise KeyboardInterrupt from end
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        os.chdir(here)
        signal.signal(signal.SIGTERM, on_term)
        root.handlers, logging.raiseExceptions = handlers, raises
        root.setLevel(level)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())
