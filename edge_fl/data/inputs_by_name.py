"""Data as a model takes it that has several inputs by name: cut out, put in order, and packed into one array."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError, printable, said
from edge_fl.core.inputs import MOST_EXACT, NamedInput, pack, places
from edge_fl.data.registry import Samples

__all__ = ["inputs_of", "with_inputs", "without_name"]


def inputs_of(samples: Samples) -> dict[str, NDArray[Any]]:
    """The inputs of samples, ``[n, *shape]`` each, by name: named inputs, or columns of one number each."""
    if samples.inputs:
        at = places(samples.inputs)
        return {each.name: samples.x[:, at[each.name]].reshape(-1, *each.shape) for each in samples.inputs}
    return {name: samples.x[:, i] for i, name in enumerate(samples.columns)}


def with_inputs(samples: Samples, inputs: Sequence[NamedInput]) -> Samples:
    """The samples with ``inputs`` alone, in this order and of these dtypes; the same object where they are so already.

    Raises
    ------
    DataError
        When one is missing, or its shape or values are not those that the model takes.
    """
    if samples.inputs == tuple(inputs):
        return samples
    held: Mapping[str, NDArray[Any]] = inputs_of(samples)
    if not held and len(inputs) == 1:
        held = {inputs[0].name: samples.x}
    for each in inputs:
        if each.name not in held:
            raise DataError(
                f"The data has {_listed(held) if held else 'one input without a name'}, and the model takes "
                f"{_listed([each.name for each in inputs])}: give arrays of these names."
            )
    arrays = {each.name: _converted(held[each.name], each) for each in inputs}
    try:
        return replace(samples, x=pack(arrays), inputs=tuple(inputs), columns=())
    except ValueError as error:
        raise DataError(f"The data cannot be the model's inputs: {said(error)}.") from error


def without_name(samples: Samples) -> Samples:
    """The samples of one input as those of a model that takes one without a name; DataError where there are several."""
    held = inputs_of(samples)
    if "x" in held and len(held) > 1:  # what a model of one input takes is called so
        one = next(each for each in samples.inputs if each.name == "x")
        return replace(samples, x=np.ascontiguousarray(held["x"], one.dtype), inputs=())
    if len(held) > 1 and all(each.dtype == "float32" and len(each.shape) < 2 for each in samples.inputs):
        return replace(samples, inputs=())  # the columns of a table, some of which are lists
    if len(held) > 1:
        raise DataError(f"The data has {_listed(held)}, and the model takes one input: give that one alone.")
    ((x, each),) = ((x, each) for x, each in zip(held.values(), samples.inputs, strict=True))
    return replace(samples, x=np.ascontiguousarray(x, each.dtype), inputs=())


def _converted(array: NDArray[Any], taken: NamedInput) -> NDArray[Any]:
    """Numbers as the model takes them; raises DataError where that would change a value."""
    if array.shape[1:] != taken.shape:
        raise DataError(
            f"The data's '{taken.name}' has the shape {array.shape[1:]} a sample, and the model takes {taken.shape}."
        )
    if taken.dtype == "float32":
        if array.dtype == np.int64:
            _refuse(np.abs(array) > MOST_EXACT, array, "float32 does not hold such whole numbers", taken.name)
        return array.astype(np.float32)
    whole = array.astype(np.int64)
    _refuse(whole != array, array, f"the model takes {taken.dtype}", taken.name)
    most = 1 if taken.dtype == "bool" else taken.vocabulary - 1
    if most >= 0:
        _refuse((whole < 0) | (whole > most), array, f"the model knows 0 to {most}", taken.name)
    return whole


def _refuse(wrong: NDArray[np.bool_], array: NDArray[Any], taken: str, name: str) -> None:
    if wrong.any():
        at = np.argwhere(wrong.reshape(len(wrong), -1))[0]
        value = array.reshape(len(array), -1)[tuple(at)]
        raise DataError(f"The data's '{name}' is {value:g} in sample {at[0]} (from 0), and {taken}.")


def _listed(names: Any) -> str:
    return "the inputs " + ", ".join(f"'{printable(name, 40)}'" for name in names)
