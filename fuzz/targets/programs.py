"""Programs out of a bundle, as each runtime loads them."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from edge_fl.core.bundle import Bundle, Program
from edge_fl.core.errors import BundleError
from edge_fl.runtimes._external_data import refuse_external_data
from fuzz.campaign import BUNDLE
from fuzz.target import Prepared

__all__ = ["executorch", "executorch_training", "external_data", "onnx", "torch_eager"]

_PATCH = 3  # bytes: where a program is changed, and to what


def _patched(program: bytes, end: int, load: Callable[[bytes], Any]) -> Prepared:
    """``load`` the program with bytes before ``end`` changed as a case says, or cut, or the case itself."""
    room = (end.bit_length() + 7) // 8
    patch = room + 1

    def run(data: bytes) -> None:
        kind, data = (data[0] % 4 if data else 0), data[1:]
        held = bytearray(program)
        if kind == 0:
            held[:end] = data[:end]
        elif kind == 1:
            del held[int.from_bytes(data[:room], "little") % end :]
        else:
            for start in range(0, len(data) - _PATCH, patch):
                place = int.from_bytes(data[start : start + room], "little") % end
                held[place] = data[start + room] if start + room < len(data) else 0
        with contextlib.suppress(BundleError):
            load(bytes(held))

    return Prepared(
        run, [b"\0" + program[:end], b"\1" + bytes(room), *(b"\2" + bytes([n] * patch) for n in range(8))]
    )


def _program(runtime: str) -> bytes:
    bundle = Bundle.load(Path(os.environ[BUNDLE]), runtime=runtime)
    files = {program.file for program in bundle.manifest.programs[runtime]}
    return min((bundle.read(file) for file in files), key=len)


def external_data() -> Prepared:
    """The walk through a protobuf that looks for names of files."""

    def run(data: bytes) -> None:
        with contextlib.suppress(BundleError):
            refuse_external_data(data, "program")

    return Prepared(run, [_program("onnx"), b"\x08\x07\x3a\x04\x0a\x02\x2a\x00"])


def onnx() -> Prepared:
    """A session of onnxruntime."""
    import onnxruntime

    from edge_fl.runtimes.onnx import open_session

    onnxruntime.set_default_logger_severity(4)
    whole = _program("onnx")
    program = Program("step.onnx", "step", (), ())

    def load(content: bytes) -> None:
        bundle = SimpleNamespace(layout=SimpleNamespace(frozen=()), read=lambda _: content, root=Path("bundle"))
        open_session(cast(Bundle, bundle), program, threads=1)

    return _patched(whole, len(whole), load)


def torch_eager() -> Prepared:
    """A program of torch, read as data."""
    from edge_fl.runtimes._pt2 import load_program

    whole = _program("torch_eager")
    return _patched(whole, len(whole), lambda content: load_program(content, "program"))


def _own_part(program: bytes) -> int:
    """Where the part of a ``.pte`` ends that ExecuTorch verifies: its extended header says so."""
    return int.from_bytes(program[24:32], "little")


def executorch() -> Prepared:
    """A program of ExecuTorch: its own part. XNNPACK verifies the parts that it compiled less."""
    from edge_fl.runtimes._executorch.native import NativeProgram, set_threads

    set_threads(1)
    whole = _program("executorch")
    return _patched(
        whole, int.from_bytes(whole[24:32], "little"), lambda content: NativeProgram(content, "program")
    )


def executorch_training() -> Prepared:
    """A program in ExecuTorch's training format."""
    from edge_fl.runtimes.executorch_training import _Module

    whole = _program("executorch_training")
    return _patched(whole, _own_part(whole), lambda content: _Module(content, "program"))
