"""A runtime on emulated hardware: the real one, slowed down, short of memory and on a battery."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sim.emulation.battery import Battery
from device_sim.emulation.duty_cycle import DutyCycle
from device_sim.emulation.memory_limit import told_as_memory
from device_sim.emulation.step_costs import StepCosts
from edge_fl.core.bundle import Bundle, Program
from edge_fl.runtimes.base import Compiled, Runtime, open_runtime

__all__ = ["EmulatedRuntime", "Hardware"]


@dataclass(frozen=True)
class Hardware:
    """What one device computes on.

    ``costs`` are this machine's, ``scale`` is how many seconds here one of the device's takes, and ``battery`` is None
    where there is none.
    """

    duty: DutyCycle
    costs: StepCosts
    memory_mb: int
    scale: float = 1.0
    battery: Battery | None = None

    def consent(self) -> None:
        """Raise RunError when its battery is too low to train."""
        if self.battery is not None:
            self.battery.check()

    def open(self, name: str, bundle: Bundle, *, threads: int = 1) -> Runtime:
        """As :func:`edge_fl.runtimes.base.open_runtime`, on this hardware."""
        with told_as_memory(self.memory_mb, f"opening the bundle in {name}"):
            return EmulatedRuntime(open_runtime(name, bundle, threads=threads), self)


class EmulatedRuntime(Runtime):
    """``real``, on ``hardware``.

    Every run of a program takes as long as on the device, drains its battery, and raises MemoryLimitError when its
    memory does not suffice.
    """

    def __init__(self, real: Runtime, hardware: Hardware) -> None:
        super().__init__(real.bundle, threads=real.threads)
        self.name = real.name
        self._real, self._hardware = real, hardware

    def load(self, program: Program) -> Compiled:
        """The real runtime's program, slowed down."""
        # What is kept must not hold this Runtime, which keeps it: they would go only when garbage is collected.
        bundle, hardware, battery = self.bundle, self._hardware, self._hardware.battery
        what = "a train step" if program.kind == "step" else "an evaluation"
        with told_as_memory(hardware.memory_mb, "loading the program"):
            run = self._real.load(program)

        def slowed(inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
            with told_as_memory(hardware.memory_mb, what):
                processor, wall = time.thread_time(), time.perf_counter()
                cost = hardware.costs.of(_key(bundle, program, inputs), partial(run, inputs))
                hardware.duty.leave_out(time.thread_time() - processor, time.perf_counter() - wall)
                hardware.duty.begin()
                outputs = run(inputs)
            busy = hardware.duty.end(cost)
            if battery is not None:
                battery.drain(busy / hardware.scale)
            return outputs

        return slowed

    def settle(self) -> None:
        """Wait until the device has made its steps."""
        self._hardware.duty.settle()


def _key(bundle: Bundle, program: Program, inputs: Sequence[NDArray[Any]]) -> str:
    """A program and the shapes of its inputs, the same in every process."""
    shapes = ",".join("x".join(map(str, array.shape)) for array in inputs)
    return f"{bundle.manifest.files[program.file].sha256}:{shapes}"
