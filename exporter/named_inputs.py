"""Models that take several inputs by name: their programs take one array, and cut it up first."""

import copy
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_fl.core.errors import ConfigError, said
from edge_fl.core.inputs import NamedInput, pack, packed_input, places

__all__ = ["as_one", "as_taken", "dtype_of", "named_values", "with_example_inputs", "with_named_inputs"]

_STORED = {"float32": torch.float32, "int64": torch.int64, "bool": torch.int64}
_FLAGS = 2  # values of a whole number that nothing is known of: masks, types and lengths all take 0 and 1


def with_named_inputs(model: nn.Module, inputs: Sequence[NamedInput]) -> nn.Module:
    """A copy of ``model`` that takes one array (:func:`edge_fl.core.inputs.packed_input`), and runs on ``inputs``.

    Raises
    ------
    ConfigError
        When names repeat, or are not those of its ``forward``.
    """
    try:
        packed_input(inputs)
    except ValueError as error:
        raise ConfigError(f"The inputs cannot be: {said(error)}.") from error
    try:
        inspect.signature(model.forward).bind(**{each.name: None for each in inputs})
    except TypeError as error:
        raise ConfigError(
            f"The model's forward does not take the inputs {', '.join(each.name for each in inputs)} ({said(error)}): "
            "name them as forward does."
        ) from error
    cut = copy.deepcopy(model)
    cut.register_forward_pre_hook(_Cut(tuple(inputs)), with_kwargs=True)
    return cut


def with_example_inputs(model: nn.Module, given: Any) -> tuple[nn.Module, Tensor, tuple[NamedInput, ...]]:
    """The model as it takes one array, an example of that, and the inputs that it is made of where they have names.

    Parameters
    ----------
    given
        ``[B, ...]`` of the one input, where bytes are pixels of 0 to 255, or a mapping of several by name.

    Raises
    ------
    ConfigError
        When the names are not those of ``forward``, or the inputs are not of one batch.
    """
    if not isinstance(given, Mapping):
        sample = _tensor(given, "example_inputs")
        if sample.dtype == torch.uint8:  # pixels, as in data
            return model, sample / 255, ()
        return model, sample.to(torch.float32 if sample.is_floating_point() else torch.int64), ()
    tensors = {str(name): _tensor(each, f"'{name}'") for name, each in given.items()}
    if len({len(each) if each.ndim else 0 for each in tensors.values()} - {0}) != 1:
        raise ConfigError("The example inputs are not of one batch: give [B, ...] each, with one B for all.")
    inputs = tuple(NamedInput(name, tuple(each.shape[1:]), dtype_of(each)) for name, each in tensors.items())
    arrays = {each.name: tensors[each.name].to(_STORED[each.dtype]).numpy() for each in inputs}
    return with_named_inputs(model, inputs), torch.from_numpy(pack(arrays)), inputs


def _tensor(given: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(given)
    except Exception as error:  # torch raises many types on what is no tensor
        raise ConfigError(
            f"The {what} of the model cannot be of type '{type(given).__name__}': give a tensor [B, ...], or a dict of "
            "such by the names of forward."
        ) from error


def dtype_of(example: Tensor) -> Literal["float32", "int64", "bool"]:
    """As an input of these numbers is declared."""
    if example.dtype == torch.bool:
        return "bool"
    return "float32" if example.is_floating_point() else "int64"


@dataclass(frozen=True)
class _Cut:
    """The hook: one array ``[B, F]`` as the inputs that it was made of."""

    inputs: tuple[NamedInput, ...]

    def __call__(self, _: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, Any]:
        (x,) = given
        at = places(self.inputs)
        return (), {**named, **{each.name: as_taken(x[:, at[each.name]], each) for each in self.inputs}}


def as_taken(flat: Tensor, each: NamedInput) -> Tensor:
    """An input ``[B, size]`` of the one array, as the model takes it; numbers in double precision stay so."""
    found = flat.reshape(-1, *each.shape)
    if each.dtype == "bool":
        return found != 0
    return found if each.dtype == "float32" else found.to(torch.int64)


def as_one(tensors: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    """Tensors ``[B, ...]`` as the one array ``[B, F]`` of ``dtype``, which numbers in double precision keep."""
    rows = (each.flatten(1) if each.ndim > 1 else each.unsqueeze(1) for each in tensors)
    return torch.cat([each if each.dtype == torch.float64 else each.to(dtype) for each in rows], dim=1)


def named_values(inputs: Sequence[NamedInput], size: int, rng: np.random.Generator) -> NDArray[Any]:
    """``[size, F]`` random values of the inputs, packed.

    Whole numbers are tokens of a vocabulary, or 0 and 1, both of them in each sample. A mask keeps the first position,
    or a causal model would see nothing there: 1 as Hugging Face has masks, and False as torch has those of bool.
    """
    return pack({each.name: _values(each, size, rng) for each in inputs})


def _values(each: NamedInput, size: int, rng: np.random.Generator) -> NDArray[Any]:
    shape = (size, *each.shape)
    if each.dtype == "float32":
        return rng.standard_normal(shape).astype(np.float32)
    values = rng.integers(0, each.vocabulary or _FLAGS, shape)
    if not each.vocabulary and each.size > 1:
        flat = values.reshape(size, -1)
        flat[:, 0], flat[:, 1] = (0, 1) if each.dtype == "bool" else (1, 0)
    return values
