"""Grids of a few clients on the digits, whose bundle is exported once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.grid import Choice, Filling


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@pytest.fixture
def filling(tmp_path: Path, bundles: Path) -> Callable[..., Filling]:
    def make(name: str = "runs", minutes: float | None = None, report: Callable[[str], None] = str) -> Filling:
        return Filling(tmp_path / f"{name}.json", bundles, minutes, report)

    return make


@pytest.fixture
def tiny() -> Callable[..., Choice]:
    def make(*methods: str, seeds: tuple[int, ...] = (0,), rounds: int = 2, **others: float) -> Choice:
        settings = {"clients": 20, "local_steps": 4, "lr": 0.1} | others
        return Choice(("digits",), seeds, methods or None, rounds, **settings)  # type: ignore[arg-type]

    return make
