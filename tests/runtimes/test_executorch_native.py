"""ExecuTorch through the shim. What could end a process, or must not be in it, is tried in another."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BundleError
from edge_fl.core.pattern import Pattern
from edge_fl.runtimes._executorch.native import NativeProgram
from edge_fl.runtimes.base import open_runtime

STEP = "executorch/step-plain-w0500-b20.pte"

TRAIN = """
import sys
from pathlib import Path
import numpy as np
from edge_fl.core.bundle import Bundle
from edge_fl.core.batch import Batch
from edge_fl.core.pattern import Pattern
from edge_fl.runtimes.base import open_runtime
bundle = Bundle.load(Path(sys.argv[1]), runtime="executorch")
data = np.load(sys.argv[2])
weights = {t.name: data[t.name] for t in bundle.layout.tensors}
step = open_runtime("executorch", bundle).train_step(Pattern.full(bundle.layout), 20)
for x, y in zip(data["x"], data["y"]):
    weights = step(weights, Batch(x, y, np.ones(20, np.float32)), lr=0.5).tensors
np.savez(sys.argv[3], **weights)
foreign = {name for name in sys.modules if name.partition(".")[0] in ("torch", "torchao", "executorch")}
assert not foreign, foreign
"""

DAMAGE = """
import sys
from pathlib import Path
from hypothesis import given, settings, strategies as st
from edge_fl.core.errors import BundleError
from edge_fl.runtimes._executorch.native import NativeProgram, set_threads
set_threads(1)
program = Path(sys.argv[1]).read_bytes()
# The program's own part, which ExecuTorch verifies; XNNPACK's parts, which it verifies less, begin where byte 24 says.
own = int.from_bytes(program[24:32], "little")
assert 1000 < own < len(program)
refused = 0

def load(data):
    global refused
    try:
        NativeProgram(data, "damaged")
    except BundleError:
        refused += 1

once = settings(deadline=None, database=None, derandomize=True, max_examples=300)

@once
@given(st.lists(st.tuples(st.integers(0, own - 1), st.integers(0, 255)), min_size=1, max_size=4))
def changed(changes):
    data = bytearray(program)
    for place, value in changes:
        data[place] = value
    load(bytes(data))

@once
@given(st.integers(0, len(program) - 1))
def cut(length):
    load(program[:length])

@once
@given(st.binary(max_size=400), st.booleans())
def invented(data, headed):
    load(program[:8] + data if headed else data)

changed(); seen = refused
cut(); cut_refused = refused - seen
invented()
assert seen > 50 and cut_refused > 100, (seen, cut_refused)
load(program)
print("alive")
"""

THREADS = """
import sys
from pathlib import Path
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.runtimes._executorch.native import NativeProgram, set_threads

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

set_threads(1)
alone = threads()
set_threads(3)
more = threads()
program = NativeProgram(Path(sys.argv[1]).read_bytes(), "step")
set_threads(3)
try:
    set_threads(2)
except RuntimeMissingError as error:
    said = str(error)
del program
set_threads(2)
import json
print(json.dumps([more - alone, said, threads() - alone]))
"""


def python(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def program(digits_bundle: Bundle) -> NativeProgram:
    return NativeProgram(digits_bundle.read(STEP), STEP)


def ones(program: NativeProgram) -> list[NDArray[np.generic]]:
    return [np.ones(spec.shape, spec.dtype) for spec in program.inputs]


def test_training_needs_no_torch_and_gives_torchs_weights(digits_bundle: Bundle, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((5, 20, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, (5, 20))
    weights = start = digits_bundle.weights()
    np.savez(tmp_path / "in.npz", x=x, y=y, **start)
    step = open_runtime("torch_eager", digits_bundle).train_step(Pattern.full(digits_bundle.layout), 20)
    for batch in zip(x, y, strict=True):
        weights = step(weights, Batch(*batch, np.ones(20, np.float32)), lr=0.5).tensors

    python(TRAIN, digits_bundle.root, tmp_path / "in.npz", tmp_path / "out.npz")

    trained = np.load(tmp_path / "out.npz")
    for name, array in weights.items():
        np.testing.assert_allclose(trained[name], array, rtol=0, atol=1e-5)
        assert np.abs(array - start[name]).max() > 1e-3


def test_damaged_programs_are_refused_and_end_no_process(digits_bundle: Bundle) -> None:
    assert python(DAMAGE, digits_bundle.root / STEP) == "alive\n"


def test_a_damaged_program_is_told_by_its_name() -> None:
    with pytest.raises(BundleError, match=r"^ExecuTorch cannot load 'here\.pte': too short for a program\.$"):
        NativeProgram(b"pte", "here.pte")
    with pytest.raises(BundleError, match=r"'here\.pte': not a program of this version of ExecuTorch\.$"):
        NativeProgram(bytes(100), "here.pte")


def test_a_program_says_what_it_takes_and_gives(program: NativeProgram) -> None:
    taken = [(str(spec.dtype), spec.shape) for spec in program.inputs]
    weights = [("float32", shape) for shape in ((16, 64), (16,), (16, 16), (16,), (10, 16), (10,))]
    batch = [("float32", (20, 1, 8, 8)), ("int64", (20,)), ("float32", (20,))]
    assert taken == [*weights, *batch, ("float32", ()), ("float32", ())]
    assert [(str(spec.dtype), spec.shape) for spec in program.outputs] == [("float32", ()), *weights]


def test_results_are_arrays_of_their_own(program: NativeProgram) -> None:
    inputs = ones(program)
    first = program.run(inputs)
    before = [array.copy() for array in first]
    inputs[0][:] = 2
    second = program.run(inputs)

    assert all(np.array_equal(array, kept) for array, kept in zip(first, before, strict=True))
    assert not np.array_equal(second[1], first[1])


def wrong(program: NativeProgram, index: int, array: NDArray[np.generic]) -> list[NDArray[np.generic]]:
    return [*ones(program)[:index], array, *ones(program)[index + 1 :]]


@pytest.mark.parametrize(
    ("index", "array", "sentence"),
    [
        (0, np.zeros((16, 65), np.float32), r"Input 0 of '.*' is float32 \(16, 64\), not float32 \(16, 65\)\."),
        (0, np.zeros((16, 64), np.float64), r"Input 0 .* not float64 \(16, 64\)\."),
        (0, np.zeros((16, 64), ">f4"), r"Input 0 .* not >f4"),
        (0, np.zeros((64, 16), np.float32).T, r"Input 0 .* in C order"),
        (1, np.zeros(65, np.uint8)[1:].view(np.float32), r"Input 1 .* aligned"),
        (7, np.zeros(20, np.int32), r"Input 7 .* is int64 \(20,\), not int32 \(20,\)\."),
        (9, np.zeros(1, np.float32), r"Input 9 .* is float32 \(\), not float32 \(1,\)\."),
    ],
)
def test_an_array_that_does_not_fit_is_refused(
    index: int, array: NDArray[np.generic], sentence: str, program: NativeProgram
) -> None:
    with pytest.raises(BundleError, match=sentence):
        program.run(wrong(program, index, array))


def test_another_number_of_inputs_is_refused(program: NativeProgram) -> None:
    with pytest.raises(BundleError, match="takes 11 inputs, not 10"):
        program.run(ones(program)[:-1])


def test_one_program_may_be_called_from_several_threads(program: NativeProgram) -> None:
    batches = [ones(program) for _ in range(8)]
    for value, inputs in enumerate(batches):
        inputs[0][:] = value
    alone = [program.run(inputs) for inputs in batches]

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(program.run, batches * 20))

    for results, expected in zip(together, alone * 20, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))


def compiled(**plan: bool) -> bytes:
    """A program of ``2 * x + y`` whose inputs or outputs have a place in its own memory, or not."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass

    class Affine(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return 2 * x + y, x - y

    edge = to_edge(torch.export.export(Affine(), (torch.ones(3), torch.ones(3))))
    config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(**plan))
    return bytes(edge.to_executorch(config).buffer)


def test_outputs_without_a_place_in_the_programs_memory_are_written_in_place() -> None:
    program = NativeProgram(compiled(alloc_graph_output=False), "affine")
    x, y = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)

    first = program.run([x, y])
    second = program.run([y, x])

    assert [array.tolist() for array in first] == [[6, 9, 12], [-3, -3, -3]]
    assert [array.tolist() for array in second] == [[9, 12, 15], [3, 3, 3]]


def test_inputs_without_a_place_in_the_programs_memory_are_refused() -> None:
    with pytest.raises(BundleError, match="'affine': an input without a place in the program's own memory"):
        NativeProgram(compiled(alloc_graph_input=False), "affine")


def test_threads_are_set_until_programs_use_them(digits_bundle: Bundle) -> None:
    grown, said, left = json.loads(python(THREADS, digits_bundle.root / STEP))

    assert grown == 2
    assert said == "ExecuTorch cannot use 2 threads: programs are loaded with 3 threads."
    assert left == 1
