"""Clients trained by several processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.model import GlobalModel
from broker.observer import Observer
from broker.tasks import make_task
from device_sim.simulation.buffer_files import BufferFiles
from device_sim.simulation.processes import ProcessEngine
from device_sim.simulation.ray_engine import RayEngine
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from device_sim.simulation.trainer import Call, RuntimeTrainer, Trainer
from device_sim.simulation.worker import Train
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.errors import FrameError, RunError, RuntimeMissingError
from edge_fl.data.registry import load_dataset
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.training.update import Update, Visit
from edge_fl.wire.messages import MOST_STEPS

CONFIG = RunConfig(
    run="test",
    method="fedbiad+dgc",
    parameters={},
    rounds=2,
    clients_per_round=9,
    local_steps=5,
    batch=20,
    lr=0.1,
    seed=3,
)


def simulation(
    bundle: Bundle, root: Path, trainer: TrainerSettings, observer: Observer | None = None, **changes
) -> Simulation:
    return Simulation(
        bundle=bundle,
        config=msgspec.structs.replace(CONFIG, **changes),
        population=Population(9),
        trainer=trainer,
        root=root,
        observer=observer or Observer(),
    )


@pytest.mark.parametrize("kind", ["runtime", "stacked"])
def test_two_processes_train_what_one_does(torch_bundle: Bundle, tmp_path: Path, kind: str) -> None:
    one = load_file(simulation(torch_bundle, tmp_path / "one", TrainerSettings(kind)).run().weights)
    two = load_file(simulation(torch_bundle, tmp_path / "two", TrainerSettings(kind, processes=2)).run().weights)
    for name, array in one.items():
        if kind == "runtime":
            assert array.tobytes() == two[name].tobytes()
        np.testing.assert_allclose(two[name], array, rtol=0, atol=1e-5)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("bound", "value"), [("_AT_ONCE", 4), ("_AT_ONCE_BYTES", 0)])
def test_states_that_are_read_together_are_each_clients_own(
    torch_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    """DGC remembers what it did not send: 9 clients in one part, in parts of 4, and one after another."""
    together = simulation(torch_bundle, tmp_path / "together", TrainerSettings("runtime"), rounds=3).run()
    monkeypatch.setattr(f"device_sim.simulation.fleet.{bound}", value)
    apart = simulation(torch_bundle, tmp_path / "apart", TrainerSettings("runtime"), rounds=3).run()
    ours, theirs = load_file(together.weights), load_file(apart.weights)
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def test_what_goes_wrong_in_a_process_is_told_as_it_is(torch_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="lower the step size"):
        simulation(torch_bundle, tmp_path / "run", TrainerSettings("runtime", processes=2), lr=1e30).run()
    without = TrainerSettings("runtime", "ort_training", processes=2)
    with pytest.raises(RuntimeMissingError, match="not for 'ort_training'"):
        simulation(torch_bundle, tmp_path / "other", without)


def test_an_update_from_another_machine_is_held_against_its_checksum(
    torch_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(self: Visit) -> Update:
        update = made(self)
        frame = bytearray(update.frame)
        frame[-4] ^= 1  # the lowest bit of its last value
        return replace(update, frame=bytes(frame))

    made, dense = Visit.update, {"method": "fedavg", "parameters": {}}
    monkeypatch.setattr(Visit, "update", damaged)
    simulation(torch_bundle, tmp_path / "here", TrainerSettings("runtime"), **dense).run()
    monkeypatch.setattr(RuntimeTrainer, "remote", RayEngine.remote)
    with pytest.raises(FrameError, match="checksum does not match"):
        simulation(torch_bundle, tmp_path / "elsewhere", TrainerSettings("runtime"), **dense).run()
    assert not ProcessEngine.remote


def test_of_a_round_that_is_given_up_nothing_is_taken_for_the_next_one_s(torch_bundle: Bundle) -> None:
    recipe, samples = open_recipe("fedbiad", {}), load_dataset("digits").train.take(np.arange(60))
    model = GlobalModel(torch_bundle.layout, torch_bundle.weights(), recipe=recipe, run="test").frame()

    def calls(number: int, lr: float = 0.1) -> list[Call]:
        config = msgspec.structs.replace(CONFIG, lr=lr)
        about = {"tier": 0, "round": number, "accepted": 0, "model": ref_of(model), "weights": {}}
        clients = [f"client-{i}" for i in range(8)]
        tasks = [make_task(config, recipe, torch_bundle.layout, client=client, **about) for client in clients]
        return [Call(task, client, samples, {}) for client, task in zip(clients, tasks, strict=True)]

    def frames(updates: Iterator[Update]) -> list[bytes]:
        return [update.frame for update in updates]

    alone = TrainerSettings("runtime").open(torch_bundle)
    several = TrainerSettings("runtime", processes=2).open(torch_bundle)
    given_up = several.updates(model, calls(1), 8)
    next(given_up)
    given_up.close()
    with pytest.raises(RunError, match="lower the step size"):  # of one process: the other's comes later
        next(several.updates(model, calls(2, lr=1e30), 8))
    assert frames(several.updates(model, calls(3), 8)) == frames(alone.updates(model, calls(3), 8))
    several.close()


class Waiting(Trainer):
    """Trains nobody, once there is a file."""

    def __init__(self, go: Path) -> None:
        self._go = go

    def updates(self, model: bytes, calls: Iterable[Call], count: int) -> Iterator[Update]:
        while not self._go.exists():
            time.sleep(0.01)
        return iter(())


def waiting(go: Path, bundle: Bundle) -> Trainer:
    return Waiting(go)


def test_a_process_takes_the_next_part_while_it_trains_one(torch_bundle: Bundle, tmp_path: Path) -> None:
    """A part fills the pipe, so a process that left it there would have this one wait."""
    engine, go = ProcessEngine(torch_bundle, partial(waiting, tmp_path / "go"), 1), tmp_path / "go"
    calls: list[Any] = [bytes(8 << 20)]  # no buffer, so no file takes them
    try:
        assert list(islice(engine.part_sizes(100), 9)) == [16, 16, 16, 16, 16, 8, 4, 4, 4]
        assert list(islice(engine.part_sizes(3), 4)) == [1, 1, 1, 1]
        assert engine.room == 2
        engine.begin(0, b"", Train(calls))
        engine.begin(1, b"", Train(calls))
        assert engine.room == 0
        go.touch()
        found = []
        while len(found) < 2:
            found += engine.finished()
        assert (found, engine.room) == ([(0, []), (1, [])], 2)
    finally:
        engine.close()


def test_of_a_process_that_cannot_start_nothing_is_left(
    torch_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(AttributeError, match=r"local object|lambda"):  # it cannot be pickled
        ProcessEngine(torch_bundle, lambda bundle: Waiting(tmp_path), 1)
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_its_files_no_process_is_left(
    torch_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = list[BufferFiles](), BufferFiles.make

    def once(count: int) -> BufferFiles:
        if made:
            monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
        made.append(make(count))
        return made[-1]

    monkeypatch.setattr(BufferFiles, "make", once)
    with pytest.raises(RunError, match=r"No such file or directory.*another in TMPDIR"):
        ProcessEngine(torch_bundle, partial(waiting, tmp_path / "go"), 2)
    assert len(made) == 1
    assert not multiprocessing.active_children()
    assert made[0].folder is not None
    assert not made[0].folder.exists()


class Killer(Observer):
    """Kills a process once the first client is done."""

    def device(self, client: str, status: str) -> None:
        if client == "client-0":
            multiprocessing.active_children()[0].kill()


def test_a_process_that_is_killed_ends_the_run_with_the_way_on(torch_bundle: Bundle, tmp_path: Path) -> None:
    trainer, root = TrainerSettings("runtime", processes=2), tmp_path / "run"
    with pytest.raises(RunError, match="continue the run with --resume"):
        simulation(torch_bundle, root, trainer, Killer()).run()
    Simulation.resume(root, observer=Observer()).run()


def children(parent: int) -> set[int]:
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                found.add(int(status.parent.name))
    return found


def training(processes: set[int]) -> set[int]:
    """Those that have loaded the runtime, which they do for their first part."""
    return {process for process in processes if "onnxruntime" in Path(f"/proc/{process}/maps").read_text()}


def test_processes_end_with_a_parent_that_is_killed(torch_bundle: Bundle, tmp_path: Path) -> None:
    """Of whom each would need many minutes for the part that it is in the middle of."""
    options = ["--trainer=runtime", "--processes=2", "--clients=2", "--fraction=1", "--batch=512"]
    options += [f"--local-steps={MOST_STEPS}", f"--output={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "edge_fl", "simulate", str(torch_bundle.root), *options]
    limit = time.monotonic() + 300
    with subprocess.Popen(command) as parent:
        try:
            while len(training(started := children(parent.pid))) < 2:
                assert parent.poll() is None
                assert time.monotonic() < limit
                time.sleep(0.1)
        finally:
            parent.kill()
    limit = time.monotonic() + 60
    while (left := [child for child in started if Path(f"/proc/{child}").exists()]) and time.monotonic() < limit:
        time.sleep(0.1)
    for orphan in left:
        os.kill(orphan, signal.SIGKILL)
    assert not left
