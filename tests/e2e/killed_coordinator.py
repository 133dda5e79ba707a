"""A coordinator that dies (SIGKILL) at a chosen one of the points at which something becomes durable.

They are before and after each file is flushed, and before each statement that changes the record.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from broker.config import RunConfig
from broker.observer import Observer
from broker.session import resume, serve
from edge_fl.bundle import Bundle
from edge_fl.transport.connection import BrokerAddress


def coordinate(bundle: Path, config: RunConfig, root: Path, address: BrokerAddress, lives: int | None) -> None:
    """Begin the run in ``root``, or go on with it; die at the ``lives``-th of those points (None: never)."""
    if lives is not None:
        _die_at(lives)
    if (root / "state.sqlite").exists():
        resume(root, address=address, observer=Observer())
    else:
        serve(bundle=Bundle.load(bundle), config=config, root=root, address=address, observer=Observer())


def _die_at(lives: int) -> None:
    left = [lives]

    def live(*_anything: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    flush: Callable[[Any], None] = os.fsync

    def fsync(file: Any) -> None:
        live()
        flush(file)
        live()

    def statement(_connection: object, _cursor: object, text: str, *_anything: object) -> None:
        if text.startswith(("INSERT", "UPDATE", "DELETE")):
            live()

    os.fsync = fsync
    event.listen(Engine, "before_cursor_execute", statement)
