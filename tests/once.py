"""What every process of a test run needs, and one of them makes."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_fl.core.bundle import SEAL, Bundle

__all__ = ["exported_once"]


def exported_once(
    factory: pytest.TempPathFactory, name: str, export: Callable[[Path], Bundle], *, workers: bool
) -> Bundle:
    """The bundle ``name`` of this test run, which the first process that asks exports, and the others load.

    ``workers`` says whether pytest-xdist runs several: each has a folder in a common one.
    """
    common = factory.getbasetemp().parent if workers else factory.getbasetemp()
    root = common / f"bundle-{name}"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Bundle.load(root) if (root / SEAL).exists() else export(root)
