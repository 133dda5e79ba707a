import os
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BundleError, RuntimeMissingError
from edge_fl.core.pattern import Pattern
from edge_fl.runtimes._remote import RemoteRuntime
from edge_fl.runtimes.base import TrainStep, open_runtime


def batch() -> Batch:
    rng = np.random.default_rng(0)
    return Batch(rng.random((20, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 20), np.ones(20, np.float32))


def test_another_process_gives_the_very_bits_of_this_one(digits_bundle: Bundle) -> None:
    here = open_runtime("onnx", digits_bundle).train_step(Pattern.full(digits_bundle.layout), 20)
    program = digits_bundle.manifest.step_program("onnx", "plain", {}, 20)
    assert program is not None
    there = TrainStep(program, RemoteRuntime(sys.executable, "onnx", digits_bundle).load(program))

    for _ in range(2):
        ours = here(digits_bundle.weights(), batch(), lr=0.1)
        theirs = there(digits_bundle.weights(), batch(), lr=0.1)
        assert ours.loss == theirs.loss
        assert all(np.array_equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


def test_the_process_ends_with_the_runtime(digits_bundle: Bundle) -> None:
    remote = RemoteRuntime(sys.executable, "onnx", digits_bundle)
    process = remote._process
    del remote

    assert process.wait(timeout=30) == 0


def test_a_program_that_cannot_be_loaded_is_refused_as_it_is_here(digits_bundle: Bundle, tmp_path: Path) -> None:
    files = {name: digits_bundle.read(name) for name in digits_bundle.manifest.files}
    files["onnx/eval.onnx"] = b""  # a protobuf without a graph
    broken = Bundle.save(tmp_path / "broken", digits_bundle.manifest, files)
    program = broken.manifest.eval_program("onnx")
    assert program is not None

    with pytest.raises(BundleError, match=r"cannot load .*eval\.onnx"):
        RemoteRuntime(sys.executable, "onnx", broken).load(program)


def test_a_process_that_does_not_come_up_or_is_gone_is_said_to_be(digits_bundle: Bundle) -> None:
    program = digits_bundle.manifest.programs["onnx"][0]
    with pytest.raises(RuntimeMissingError, match="no Python at '/nowhere/python'"):
        RemoteRuntime("/nowhere/python", "onnx", digits_bundle)
    with pytest.raises(RuntimeMissingError, match="no more answer from the runtime 'tflite'"):
        RemoteRuntime(sys.executable, "tflite", digits_bundle).load(program)
    remote = RemoteRuntime(sys.executable, "onnx", digits_bundle)
    remote.load(program)
    os.kill(remote._process.pid, 9)
    with pytest.raises(RuntimeMissingError, match="no more answer"):
        remote.load(program)
