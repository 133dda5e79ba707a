"""Cores of a share of this machine's speed, so that processes which keep its cores busy have some free."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["children_of", "slow_cores"]

_TURN = 0.005  # seconds


def children_of(pid: int) -> list[int]:
    """The processes that a process has begun (Linux)."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for thread in threads for child in thread.read_text().split())


@contextmanager
def slow_cores(pids: Sequence[int], turns: int) -> Iterator[None]:
    """Have each process run every so many turns of 5 ms, and stopped in between, as ``cpulimit`` does.

    Processes begin at different turns, so as few as possible run at a time. With one turn nothing is stopped.
    """
    if turns == 1:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_take_turns, args=(pids, turns, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for pid in pids:
            _signal(pid, signal.SIGCONT)


def _take_turns(pids: Sequence[int], turns: int, ended: threading.Event) -> None:
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    number, due = 0, time.monotonic()
    while not ended.is_set():
        turn = pids[number % turns :: turns]
        for pid in turn:
            _signal(pid, signal.SIGCONT)
        due = max(due, time.monotonic()) + _TURN
        time.sleep(max(due - time.monotonic(), 0))
        for pid in turn:
            _signal(pid, signal.SIGSTOP)
        number += 1


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
