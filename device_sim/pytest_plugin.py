"""The pytest fixture ``edge_fl_fleet``: tests with devices of different means, in ten lines (docs/fleet.md).

pytest finds it by itself where edge-fl is installed. Nothing of edge-fl is imported before a test asks for it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from device_sim.emulation.tested_fleet import TestedFleet

__all__ = ["edge_fl_fleet"]


@pytest.fixture
def edge_fl_fleet(tmp_path: Path) -> Iterator[Callable[[str], "TestedFleet"]]:
    """Start the fleet that a text in the format of a fleet file describes; it is stopped when the test ends."""
    from device_sim.emulation.tested_fleet import TestedFleet

    with ExitStack() as stack:

        def start(text: str) -> TestedFleet:
            return stack.enter_context(TestedFleet(text, tmp_path))

        yield start
