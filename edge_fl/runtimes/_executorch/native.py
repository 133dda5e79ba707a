"""The shim through ctypes: programs as functions of numpy arrays."""

import ctypes
import functools
import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import BundleError, RuntimeMissingError
from edge_fl.runtimes._executorch.build import build_runtime
from edge_fl.runtimes._stderr import native_stderr_closed

__all__ = ["NativeProgram", "TensorSpec", "set_threads"]

_log = logging.getLogger(__name__)
# ExecuTorch's ScalarType
_DTYPES = {
    0: np.uint8,
    1: np.int8,
    3: np.int32,
    4: np.int64,
    5: np.float16,
    6: np.float32,
    7: np.float64,
    11: np.bool_,
}
_RANK = 16


@dataclass(frozen=True)
class TensorSpec:
    """What one input or output is, to the dimension: programs are static."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class NativeProgram:
    """The method ``forward`` of one ExecuTorch program, loaded. May be called from any thread, one at a time.

    Parameters
    ----------
    data
        The bytes of a ``.pte`` file; copied.
    where
        What to call it in errors.

    Raises
    ------
    BundleError
        When ExecuTorch cannot load it, or an input or output is not a tensor that numpy can hold.
    RuntimeMissingError
        When the shim cannot be built (:func:`edge_fl.runtimes._executorch.build.build_runtime`).
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._library = _library()
        self._where = where
        handle = self._library.edge_fl_et_load(data, len(data))
        if not handle:
            raise BundleError(f"ExecuTorch cannot load '{where}': {_error(self._library)}.")
        self._handle = ctypes.c_void_p(handle)
        weakref.finalize(self, self._library.edge_fl_et_destroy, self._handle)
        self.inputs = self._specs(outputs=False)
        self.outputs = self._specs(outputs=True)
        self._input_bytes, self._output_bytes = _sizes(self.inputs), _sizes(self.outputs)

    def run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the program.

        Parameters
        ----------
        arrays
            The inputs in the program's order, each C-contiguous, of exactly the dtype and shape in ``inputs``. They
            are only read.

        Returns
        -------
        The outputs, as ``outputs`` has them; new arrays at every call.

        Raises
        ------
        BundleError
            When an array is not what the program takes, or the program fails.
        """
        self._check(arrays)
        results: list[NDArray[Any]] = [np.empty(spec.shape, spec.dtype) for spec in self.outputs]
        failed = self._library.edge_fl_et_run(
            self._handle,
            *(_addresses(arrays), self._input_bytes, len(arrays)),
            *(_addresses(results), self._output_bytes, len(results)),
        )
        if failed:
            raise BundleError(f"ExecuTorch cannot run '{self._where}': {_error(self._library)}.")
        return results

    def _check(self, arrays: Sequence[NDArray[Any]]) -> None:
        if len(arrays) != len(self.inputs):
            raise BundleError(f"'{self._where}' takes {len(self.inputs)} inputs, not {len(arrays)}.")
        for index, (array, spec) in enumerate(zip(arrays, self.inputs, strict=True)):
            if array.dtype != spec.dtype or array.shape != spec.shape:
                raise BundleError(
                    f"Input {index} of '{self._where}' is {spec.dtype} {spec.shape}, not {array.dtype} {array.shape}."
                )
            if not (array.flags.c_contiguous and array.flags.aligned):
                raise BundleError(f"Input {index} of '{self._where}' must lie in memory in C order, and aligned.")

    def _specs(self, *, outputs: bool) -> tuple[TensorSpec, ...]:
        count = self._library.edge_fl_et_count(self._handle, outputs)
        return tuple(self._spec(outputs, index) for index in range(count))

    def _spec(self, outputs: bool, index: int) -> TensorSpec:
        scalar, rank, sizes = ctypes.c_int32(), ctypes.c_int32(), (ctypes.c_int32 * _RANK)()
        self._library.edge_fl_et_spec(
            self._handle, outputs, index, ctypes.byref(scalar), ctypes.byref(rank), sizes
        )
        if scalar.value not in _DTYPES:
            raise BundleError(
                f"'{self._where}' has a tensor of ScalarType {scalar.value}, which numpy cannot hold."
            )
        return TensorSpec(np.dtype(_DTYPES[scalar.value]), tuple(sizes[: rank.value]))


def set_threads(threads: int) -> None:
    """Set how many CPU threads ExecuTorch's programs use; one pool serves the whole process.

    Raises
    ------
    RuntimeMissingError
        While programs are loaded that were loaded with another number: they point into its pool.
    """
    library = _library()
    with native_stderr_closed():
        failed = library.edge_fl_et_set_threads(threads)
    if failed:
        raise RuntimeMissingError(f"ExecuTorch cannot use {threads} threads: {_error(library)}.")


@functools.cache
def _library() -> ctypes.CDLL:
    path = build_runtime(_log.info)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeMissingError(f"The ExecuTorch runtime cannot be loaded: {error}.") from error
    pointers, sizes = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)
    number = ctypes.POINTER(ctypes.c_int32)
    handle, count = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("start", ctypes.c_int, []),
        ("error", ctypes.c_char_p, []),
        ("load", handle, [ctypes.c_char_p, count]),
        ("destroy", None, [handle]),
        ("count", count, [handle, ctypes.c_int]),
        ("spec", ctypes.c_int, [handle, ctypes.c_int, count, number, number, number]),
        ("run", ctypes.c_int, [handle, pointers, sizes, count, pointers, sizes, count]),
        ("set_threads", ctypes.c_int, [ctypes.c_uint32]),
    ):
        function = getattr(library, f"edge_fl_et_{name}")
        function.restype, function.argtypes = result, arguments
    if library.edge_fl_et_start():
        raise RuntimeMissingError(f"ExecuTorch cannot be started: {_error(library)}.")
    return library


def _error(library: ctypes.CDLL) -> str:
    words = str(library.edge_fl_et_error().decode(errors="replace")).strip().rstrip(".")
    return "".join(
        c if c.isprintable() else "?" for c in words
    )  # ExecuTorch quotes what it read of a damaged program


def _addresses(arrays: Sequence[NDArray[Any]]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _sizes(specs: Sequence[TensorSpec]) -> "ctypes.Array[ctypes.c_size_t]":
    return (ctypes.c_size_t * len(specs))(*(spec.dtype.itemsize * int(np.prod(spec.shape)) for spec in specs))
