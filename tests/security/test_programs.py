"""Agents whose bundle's programs are hostile: each costs its task, and the agent does the next, over a real broker."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from broker.embedded import EmbeddedBroker
from edge_fl.agent.opening import in_process_of_its_own
from edge_fl.core.bundle import Bundle, Program
from edge_fl.core.errors import BundleError, RunError
from edge_fl.methods.base import METHODS
from edge_fl.recipes.own import use_code
from edge_fl.wire.messages import Failed, Finished
from edge_fl.worker.process import WorkerProcess
from tests.agent.stage import RUN, Stage, frame
from tests.worker.hostile import DEEDS
from tests.worker.tasks import DATA, model, settings, task

_MOST_KERNELS = 20  # that a step's program calls
HOSTILE = Path(__file__).parents[1] / "worker" / "hostile.py"


def with_program(bundle: Bundle, file: str, program: bytes, root: Path) -> Bundle:
    """The bundle with this program in place of its own."""
    files = {name: bundle.read(name) for name in bundle.manifest.files}
    return Bundle.save(root, bundle.manifest, files | {file: program})


def step_of(bundle: Bundle, runtime: str) -> Program:
    counts = {block.name: block.size for block in bundle.layout.blocks}
    step = bundle.manifest.step_program(runtime, "plain", counts, 20)
    assert step is not None
    return step


def crashing(bundle: Bundle, folder: Path) -> Bundle:
    """The bundle with an ExecuTorch train step that passes verification, and crashes as it runs: a call in it has an
    index that ExecuTorch does not check. There are few calls of this form, and one of them is it.
    """
    file = step_of(bundle, "executorch").file
    program = bundle.read(file)
    for at in range(0, len(program) - 12, 4):
        before, index, after = struct.unpack_from("<3I", program, at)
        if (before, after) == (8, 6) and 0 < index < _MOST_KERNELS:
            damaged = bytearray(program)
            struct.pack_into("<I", damaged, at + 4, 0x7FFFFFFF)
            made = with_program(bundle, file, bytes(damaged), folder / str(at))
            work = WorkerProcess(made, settings(folder / "empty", runtime="executorch"))
            work.hold(DATA)
            content = model(bundle)
            try:
                work.train(task(content), content, {})
            except BundleError:
                continue
            except RunError:
                return made
            finally:
                work.close()
    raise AssertionError("no such program crashes any more")


def endless(bundle: Bundle) -> bytes:
    """A train step whose loop never ends."""
    condition = numpy_helper.from_array(np.array(True), "true")
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Add", ["sum", "sum"], ["more"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", TensorProto.FLOAT, []),
        ],
    )
    return _step(bundle, [helper.make_node("Loop", ["", "true", "lr"], ["loss"], body=body)], [condition])


def hungry(bundle: Bundle) -> bytes:
    """A train step that wants 1 TB."""
    sizes = numpy_helper.from_array(np.array([1 << 38], np.int64), "sizes")
    nodes = [
        helper.make_node("ConstantOfShape", ["sizes"], ["room"]),
        helper.make_node("ReduceSum", ["room"], ["loss"], keepdims=0),
    ]
    return _step(bundle, nodes, [sizes])


def _step(bundle: Bundle, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> bytes:
    step = step_of(bundle, "onnx")
    own = onnx.load_from_string(bundle.read(step.file)).graph
    same = [helper.make_node("Identity", [name.removeprefix("new.")], [name]) for name in step.outputs[1:]]
    nodes = [*nodes, *(node for node in same if node.input[0] in step.inputs)]
    graph = helper.make_graph(nodes, "step", list(own.input), list(own.output), constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(port=0) as broker:
        yield broker


def end(stage: Stage) -> None:
    stage.say(Finished(RUN, 1))
    stage.until(lambda: bool(stage.ended))
    assert stage.ended == [None]
    stage.close()


def test_programs_that_crash_and_misbehave_cost_their_tasks_and_the_agent_lives_on(
    digits_bundle: Bundle, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS, "_used", {})
    use_code([f"{HOSTILE}:Hostile"])
    stage = Stage(digits_bundle, broker.address, tmp_path, "digits:0/10", open=in_process_of_its_own)
    stage.join()
    names = [deed.__name__ for deed in DEEDS]
    number = 0
    for deed, sentence in (("segfault", "ended by SIGSEGV"), ("connect", "not permitted"), ("abort", "SIGABRT")):
        number += 1
        content = frame(digits_bundle, "model", number - 1, digits_bundle.weights())
        stage.say(stage.task(round=number, method="hostile", seed=names.index(deed), model=stage.give(content)))
        stage.until(lambda number=number: any(isinstance(m, Failed) and m.round == number for m in stage.heard))
        failed = stage.heard[-1]
        assert isinstance(failed, Failed)
        assert (failed.code, failed.what) == ("19", "train")
        assert sentence in failed.reason
    number += 1
    content = frame(digits_bundle, "model", number - 1, digits_bundle.weights())
    stage.say(stage.task(round=number, model=stage.give(content)))
    stage.offered(number)
    assert not any((tmp_path / "state" / "empty").iterdir())
    end(stage)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [(endless, "took longer than 2 s"), (hungry, "onnx cannot run 'onnx/step")],
    ids=["endless", "hungry"],
)
def test_a_program_without_end_or_measure_costs_its_task(
    digits_bundle: Bundle, broker: EmbeddedBroker, tmp_path: Path, made: Callable[[Bundle], bytes], sentence: str
) -> None:
    file = step_of(digits_bundle, "onnx").file
    bundle = with_program(digits_bundle, file, made(digits_bundle), tmp_path / "bundle")
    stage = Stage(bundle, broker.address, tmp_path, "digits:0/10", open=in_process_of_its_own, task_limit=2.0)
    stage.join()
    for number in (1, 2):  # the agent asks its programs again, whatever became of them
        stage.say(
            stage.task(round=number, model=stage.give(frame(bundle, "model", number - 1, digits_bundle.weights())))
        )
        stage.hears(Failed, number)
        failed = stage.heard[-1]
        assert isinstance(failed, Failed)
        assert (failed.round, failed.code) == (number, "19")
        assert sentence in failed.reason
    end(stage)
