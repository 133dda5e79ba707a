"""A PostgreSQL server of a test's own, from Debian's package."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BIN = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a server that lives as long as the context; skips, or fails where it must be there, without one."""
    if not _BIN:
        if os.environ.get("EDGE_FL_REQUIRE_POSTGRES"):
            pytest.fail("PostgreSQL is not installed, and EDGE_FL_REQUIRE_POSTGRES is set")
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # not pytest's: another user must be able to enter it
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # it refuses to run as root
    if as_user:
        shutil.chown(folder, "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = str(folder / "data")
    options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
    init = [str(_BIN[-1] / "initdb"), "-D", data, "-A", "trust", "-U", "edge", "--no-sync"]
    control = [str(_BIN[-1] / "pg_ctl"), "-D", data, "-w"]
    start = [*control, "-o", options, "-l", str(folder / "log"), "start"]
    try:
        for command in (init, start):
            subprocess.run([*as_user, *command], check=True, capture_output=True, cwd="/")
        yield f"postgresql+psycopg://edge@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*as_user, *control, "-m", "immediate", "stop"], check=False, capture_output=True, cwd="/")
        shutil.rmtree(folder, ignore_errors=True)
