"""What slows a device down, runs it out of memory, and drains its battery."""

import gc
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

from device_sim.emulation.battery import Battery
from device_sim.emulation.duty_cycle import DutyCycle
from device_sim.emulation.emulated_runtime import Hardware
from device_sim.emulation.step_costs import StepCosts
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RunError
from edge_fl.core.pattern import Pattern


def compute() -> int:
    return sum(range(20_000))


def test_a_share_of_a_core_makes_a_round_last_as_long_as_its_runs_cost() -> None:
    duty = DutyCycle(0.1)
    started, busy = time.perf_counter(), 0.0
    for _ in range(5):
        duty.begin()
        compute()
        busy += duty.end(cost=0.004)
    duty.settle()
    assert busy >= 5 * 0.004 / 0.1
    assert time.perf_counter() - started >= busy


def test_what_is_computed_between_runs_counts_in_proportion_and_between_rounds_not_at_all() -> None:
    duty = DutyCycle(1.0)
    duty.begin()
    compute()
    assert duty.end(cost=0.001) == pytest.approx(0.001)
    for _ in range(10):
        compute()
    duty.begin()
    compute()
    assert duty.end(cost=0.001) > 0.002
    duty.settle()
    for _ in range(10):
        compute()
    duty.begin()
    compute()
    assert duty.end(cost=0.001) == pytest.approx(0.001)


def test_what_is_left_out_counts_for_nothing() -> None:
    duty = DutyCycle(0.1)
    duty.begin()
    compute()
    duty.end(cost=0.001)
    processor, started = time.thread_time(), time.perf_counter()
    for _ in range(100):
        compute()
    duty.leave_out(time.thread_time() - processor, time.perf_counter() - started)
    duty.begin()
    compute()
    assert duty.end(cost=0.001) < 2 * 0.001 / 0.1


def test_a_cost_is_found_once_for_all(tmp_path: Path) -> None:
    first, second = StepCosts(tmp_path / "f" / "costs.jsonl"), StepCosts(tmp_path / "f" / "costs.jsonl")
    found = first.of("a", compute)
    assert found > 0
    assert second.of("a", lambda: pytest.fail("it is known")) == found
    assert first.of("b", lambda: None) < found
    assert second.of("b", lambda: pytest.fail("it is known, too")) == first.of("b", compute)


def test_a_battery_is_drained_by_training_unless_it_is_charged() -> None:
    now = [0.0]
    battery = Battery(100.0, level=0.5, watts=2.0, charging=[(10.0, 20.0)], clock=lambda: now[0])
    battery.drain(20.0)
    assert battery.level == pytest.approx(0.1)
    battery.check()
    battery.drain(3.0)
    with pytest.raises(RunError, match=r"battery is at 4\.0%"):
        battery.check()
    now[0] = 15.0
    battery.check()
    battery.drain(50.0)
    assert battery.level == pytest.approx(0.04)
    now[0] = 20.0
    with pytest.raises(RunError, match="not being charged"):
        battery.check()


_IN_LITTLE_MEMORY = """
import sys
from pathlib import Path
import numpy as np
from device_sim.emulation.duty_cycle import DutyCycle
from device_sim.emulation.emulated_runtime import Hardware
from device_sim.emulation.memory_limit import limit_memory, told_as_memory
from device_sim.emulation.step_costs import StepCosts
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import MemoryLimitError
from edge_fl.core.pattern import Pattern
from edge_fl.core.batch import Batch

bundle = Bundle.load(Path(sys.argv[1]))
hardware = Hardware(DutyCycle(1.0), StepCosts(Path(sys.argv[2])), memory_mb=150)
weights = bundle.weights()
limit_memory(150)
runtime = hardware.open("onnx", bundle)
evaluate, step = runtime.evaluator(), runtime.train_step(Pattern.full(bundle.layout), 400_000)


def batch(size):
    return Batch(np.zeros((size, 1, 8, 8), np.float32), np.zeros(size, np.int64), np.ones(size, np.float32))


evaluate(weights, batch(100))
for doing, work in (
    ("an array", lambda: np.ones((200, 1 << 20), np.uint8)),
    # 102 MB of pixels, and as much for two layers
    ("a run", lambda: evaluate(weights, batch(400_000))),
    ("a run", lambda: step(weights, batch(400_000), lr=0.1, scale=1.0, slots={}, number=1, width=1000, extra={})),
):
    try:
        with told_as_memory(150, doing):
            work()
    except MemoryLimitError as error:
        print(error)
"""


def test_a_memory_limit_is_hit_in_python_and_in_the_runtime(digits_bundle: Bundle, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _IN_LITTLE_MEMORY, str(digits_bundle.root), str(tmp_path / "costs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "The device's 150 MB of memory do not suffice for an array.",
        "The device's 150 MB of memory do not suffice for an evaluation.",
        "The device's 150 MB of memory do not suffice for a train step.",
    ]


def test_an_emulated_runtime_goes_with_its_last_reference(digits_bundle: Bundle, tmp_path: Path) -> None:
    hardware = Hardware(DutyCycle(1.0), StepCosts(tmp_path / "costs"), memory_mb=1 << 20)
    gc.disable()  # as of the runtime that it slows down
    try:
        opened = hardware.open("onnx", digits_bundle)
        opened.train_step(Pattern.full(digits_bundle.layout), 20)
        opened.evaluator()
        gone = weakref.ref(opened)
        del opened
        assert gone() is None
    finally:
        gc.enable()
