"""Arrays of a user's as samples: every value is checked here, whatever it comes from."""

import mmap
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.errors import DataError, said
from edge_fl.core.inputs import NamedInput, pack, packed_input
from edge_fl.data.registry import Samples

__all__ = ["checked_samples"]

_Inputs = NDArray[np.float32] | NDArray[np.int64] | NDArray[np.object_]
_BLOCK = 1 << 22  # values that are looked at together
_IMAGES = 3  # axes of arrays of them, at the least


def checked_samples(
    x: object,
    y: object,
    where: str,
    *,
    place: Callable[[int], str] = "sample {} (from 0)".format,
    owner: object = None,
    class_names: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
) -> Samples:
    """Arrays of a user's as samples.

    Parameters
    ----------
    x
        ``[n, ...]``: unsigned bytes are pixels, divided by 255; other floats become float32; other integers are tokens.
        Or ``[n]`` texts; or several such arrays by name, also of bool.
    y
        ``[n, ...]``: integers are class indices, or :data:`edge_fl.core.batch.LEFT_OUT` at a position without one;
        floats are numbers, as float32.
    where
        What they come from, for the error's sentence.
    place
        Tells, in words, where in it a sample is.
    owner
        ``[n]``, whose each sample is: numbers or names; None where nobody knows.
    class_names
        What the classes of ``y`` are called, from class 0 on; empty where nobody knows.
    columns
        What the features of ``x`` are called; empty where nobody knows.

    Raises
    ------
    DataError
        When there is no sample, the two do not belong together, or a value is no number, not finite or negative where
        it is a token or a class.
    """
    targets = _array(y, "y", where)
    if isinstance(x, Mapping):
        found, inputs = _several(x, targets, where, place)
    else:
        found, inputs = _one(x, targets, where, place), ()
    return Samples(
        found, _targets(targets, where, place), _owners(owner, len(targets), where), class_names, columns, inputs
    )


def _one(x: object, targets: NDArray[np.generic], where: str, place: Callable[[int], str]) -> _Inputs:
    """The values of one input, of as many samples as there are targets."""
    inputs = _array(_texts_apart(x), "x", where)
    if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
        raise DataError(
            f"{where} gives x of shape {inputs.shape} and y of shape {targets.shape}; both need as many "
            "samples on their first axis."
        )
    if not len(targets):
        raise DataError(f"{where} holds no samples.")
    return _inputs(inputs, where, place)


def _several(
    x: Mapping[str, object], targets: NDArray[np.generic], where: str, place: Callable[[int], str]
) -> tuple[_Inputs, tuple[NamedInput, ...]]:
    """Several inputs by name, each checked as one alone is, packed, and what they are."""
    if not x:
        raise DataError(f"{where} gives no input.")
    dtypes = {name: _array(_texts_apart(each), name, where).dtype for name, each in x.items()}
    # Bytes of a mask or of a type are no pixels.
    arrays = {name: _as_whole(each) if dtypes[name] in (np.bool_, np.uint8) else each for name, each in x.items()}
    parts = {name: _one(each, targets, f"{where}, input '{name}',", place) for name, each in arrays.items()}
    texts = next((name for name, part in parts.items() if part.dtype == object), None)
    if texts is not None:
        raise DataError(f"{where} has texts as '{texts}' beside other inputs: give texts alone.")
    try:
        inputs = tuple(
            NamedInput(name, part.shape[1:], _dtype(dtypes[name], part)) for name, part in parts.items()
        )
        packed_input(inputs)
        return pack(parts), inputs
    except ValueError as error:
        raise DataError(f"{where} gives inputs that no model takes: {said(error)}.") from error


def _as_whole(values: object) -> NDArray[Any]:
    """Flags and bytes as whole numbers, but for those of images."""
    array = np.asarray(values)
    return array if array.dtype == np.uint8 and array.ndim >= _IMAGES else array.astype(np.int64)


def _dtype(given: np.dtype[Any], checked: NDArray[Any]) -> Literal["float32", "int64", "bool"]:
    if given == np.bool_:
        return "bool"
    return "float32" if checked.dtype == np.float32 else "int64"


def _targets(
    y: NDArray[np.generic], where: str, place: Callable[[int], str]
) -> NDArray[np.float32] | NDArray[np.int64]:
    if np.issubdtype(y.dtype, np.floating):
        with np.errstate(over="ignore"):  # what is too large is infinite, and refused
            numbers: NDArray[np.float32] = _cast(y, np.float32)
        _refuse(numbers, lambda some: ~np.isfinite(some), "a target that is not a finite number", where, place)
        return numbers
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"{where} gives y in {y.dtype}; classes are integers from 0, other targets are floats.")
    labels: NDArray[np.int64] = _cast(y, np.int64)

    def below(some: NDArray[Any]) -> NDArray[np.bool_]:
        return (some < 0) & (some != LEFT_OUT) if labels.ndim > 1 else some < 0

    _refuse(labels, below, "a class below 0", where, place)
    return labels


def _owners(owner: object, count: int, where: str) -> NDArray[np.int64] | None:
    """The owners as numbers from 0, in the order of their names."""
    if owner is None:
        return None
    names = _array(owner, "owner", where)
    if names.shape != (count,) or names.dtype.kind not in "iuUS":
        raise DataError(f"{where} gives owners of shape {names.shape}; each of the {count} samples needs one.")
    numbers: NDArray[np.int64] = np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


def _texts_apart(values: object) -> object:
    """A list of texts as an array of objects: numpy would make each as long as the longest."""
    texts = isinstance(values, list | tuple) and len(values) > 0 and isinstance(values[0], str)
    return np.array(values, dtype=np.object_) if texts else values


def _array(values: object, name: str, where: str) -> NDArray[np.generic]:
    try:
        return np.asarray(values)
    except Exception as error:  # whatever the user gave may raise whatever it likes
        raise DataError(f"{where} gives no array as {name}: {said(error)}.") from error


def _inputs(x: NDArray[np.generic], where: str, place: Callable[[int], str]) -> _Inputs:
    if x.dtype.kind in "UO" and x.ndim == 1 and all(isinstance(each, str) for each in x):
        return x.astype(np.object_)
    if x.dtype == np.uint8:
        pixels: NDArray[np.float32] = np.divide(x, 255, dtype=np.float32)
        return pixels
    if np.issubdtype(x.dtype, np.floating):
        with np.errstate(over="ignore"):  # what is too large is infinite, and refused
            inputs: NDArray[np.float32] = _cast(x, np.float32)
        _refuse(inputs, lambda some: ~np.isfinite(some), "a value that is not a finite number", where, place)
        return inputs
    if np.issubdtype(x.dtype, np.integer):
        tokens: NDArray[np.int64] = _cast(x, np.int64)
        _refuse(tokens, lambda some: some < 0, "a token below 0", where, place)
        return tokens
    raise DataError(f"{where} gives x in {x.dtype}; it takes numbers, or one text a sample.")


def _cast(array: NDArray[Any], dtype: type[np.float32 | np.int64]) -> NDArray[Any]:
    """The array in ``dtype``: itself where it is of a file that is mapped to be read, else a copy."""
    return array.astype(dtype, copy=not _is_mapped(array))


def _is_mapped(array: NDArray[Any]) -> bool:
    """Whether nobody can write to it through an array: pandas gives views that cannot be written to, of what can."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return isinstance(base, mmap.mmap)


def _refuse(
    values: NDArray[Any],
    wrong: Callable[[NDArray[Any]], NDArray[np.bool_]],
    what: str,
    where: str,
    place: Callable[[int], str],
) -> None:
    """Look at the samples a few at a time: of a large file the answers would take as much memory again."""
    step = max(_BLOCK // max(values[:1].size, 1), 1)
    for start in range(0, len(values), step):
        found = wrong(values[start : start + step])
        if found.any():
            first = start + int(np.flatnonzero(found.reshape(len(found), -1).any(axis=1))[0])
            raise DataError(f"{where} holds {what} in {place(first)}.")
