"""A coordinator that dies (SIGKILL) at a chosen one of the points at which something becomes durable.

They are before and after each file is flushed and takes its name, before each statement that changes the record, and
after each transaction.
"""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Pool, event

from broker.observer import Observer
from broker.session import resume, serve
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import StateError
from edge_fl.runs.config import RunConfig
from edge_fl.transport.address import BrokerAddress


def coordinate(bundle: Path, config: RunConfig, root: Path, address: BrokerAddress, lives: int | None) -> None:
    """Begin the run in ``root``, or go on with it; die at the ``lives``-th of those points (None: never)."""
    if lives is not None:
        _die_at(lives)
    try:
        resume(root, address=address, observer=Observer())
    except StateError as error:
        if not re.search("There is no run in|stopped before it began", str(error)):
            raise
        serve(bundle=Bundle.load(bundle), config=config, root=root, address=address, observer=Observer())


def _die_at(lives: int) -> None:
    left = [lives]

    def live(*_anything: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(do: Callable[..., None]) -> Callable[..., None]:
        def done(*arguments: Any) -> None:
            live()
            do(*arguments)
            live()

        return done

    def statement(_connection: object, _cursor: object, text: str, *_anything: object) -> None:
        if text.startswith(("INSERT", "UPDATE", "DELETE")):
            live()

    os.fsync, os.replace = around(os.fsync), around(os.replace)
    event.listen(Pool, "checkin", live)
    event.listen(Engine, "before_cursor_execute", statement)
