"""A share of a core: whoever computes for c seconds waits until c / share have passed."""

import time

__all__ = ["DutyCycle"]

_QUANTUM = 0.01


class DutyCycle:
    """Slows the work of one thread down to that of a core with a ``share``, in (0, 1], of the speed of this one.

    Work is done in rounds that end with :meth:`settle`, each of many runs of programs between :meth:`begin` and
    :meth:`end`. A run counts as what it is known to cost, and what the thread computes between two of a round counts in
    proportion, so that neither cold caches nor other programs on this machine make the device slower, as long as there
    are cores enough; by what a wait or a crowded core overran, the next wait is shorter.

    Waits are for 10 ms of processor time at a time, and for what is left at a round's end: the first run after a wait
    takes this machine twice as long as others, which a short wait after each would leave no cores for.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._resting = True
        self._due = 0.0  # perf_counter until which the device is busy with what has been computed
        self._unsettled = 0.0  # processor seconds that have not been waited for
        self._began = 0.0  # thread_time
        self._counted = 0.0  # thread_time up to which work counts in _due

    def begin(self) -> None:
        """A run begins."""
        self._began = time.thread_time()
        if self._resting:
            self._resting, self._due, self._counted = False, time.perf_counter(), self._began

    def end(self, cost: float) -> float:
        """A run ends that costs so many processor seconds; returns those that the device was busy since the last."""
        computed = time.thread_time()
        spent = cost * (computed - self._counted) / max(computed - self._began, 1e-9)
        self._counted = computed
        self._unsettled += spent
        self._due += spent / self._share
        if self._unsettled >= _QUANTUM:
            self._wait()
        return spent / self._share

    def leave_out(self, processor: float, wall: float) -> None:
        """So many seconds just passed, in processor time and all in all, were not the device's."""
        self._counted += processor
        self._due += wall

    def settle(self) -> None:
        """A round ends: wait for as long as the device would have gone on working."""
        self._wait()
        self._resting = True

    def _wait(self) -> None:
        wait = self._due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        self._unsettled = 0.0
