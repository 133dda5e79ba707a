"""Data sets by name: what every data set is, and how one is found. A new data set is one new file here."""

import importlib
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl import data
from edge_fl.core.errors import DataError
from edge_fl.core.inputs import NamedInput

__all__ = [
    "Dataset",
    "DatasetInfo",
    "Samples",
    "dataset_info",
    "dataset_names",
    "load_dataset",
    "text_encoder",
]

_FOLDER = "EDGE_FL_DATA"
_KINDS = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text", ".py": "python"}


@dataclass(frozen=True)
class DatasetInfo:
    """What a model must fit, and how it is scored.

    Parameters
    ----------
    input_shape, target_shape
        Of one sample, without the batch axis; a target is one class (the shape ``()``) or one at every position.
    classes
        How many there are; where inputs are tokens, they are classes too.
    input_dtype
        ``float32`` in [0, 1], or ``int64`` tokens.
    loss
        The one that fits the targets: ``cross_entropy`` of outputs ``[B, classes]``, or ``sequence_cross_entropy``
        of ``[B, T, classes]``, for each sample the mean over its positions.
    top
        A prediction is right when the target is among the ``top`` largest outputs, as the papers count.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    input_dtype: Literal["float32", "int64"] = "float32"
    target_shape: tuple[int, ...] = ()
    loss: Literal["cross_entropy", "sequence_cross_entropy"] = "cross_entropy"
    top: int = 1


@dataclass(frozen=True)
class Samples:
    """Labelled samples.

    Parameters
    ----------
    x
        ``[n, *input_shape]``, float32 in [0, 1] or int64 tokens; or ``[n]`` texts (str), which the bundle's tokenizer
        makes tokens of.
    y
        ``[n, *target_shape]``, int64 class indices or float32 numbers; -100 (``LEFT_OUT``) at positions without one.
        Of texts perhaps ``[n, 0]``: the target of each position is the token that follows.
    owner
        ``[n]`` int64: whose each sample is, the same number in both splits; None where nobody knows.
    class_names
        What the classes of ``y`` are called, from class 0 on; empty where the data has numbers only.
    columns
        What the features of ``x``, ``[n, F]``, are called; empty where nobody knows.
    inputs
        What ``x``, ``[n, F]``, is made of where it holds several inputs by name; else empty.
    """

    x: NDArray[np.float32] | NDArray[np.int64] | NDArray[np.object_]
    y: NDArray[np.int64] | NDArray[np.float32]
    owner: NDArray[np.int64] | None = None
    class_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    inputs: tuple[NamedInput, ...] = ()

    @property
    def are_texts(self) -> bool:
        """Whether ``x`` are texts that no tokenizer has read yet."""
        return self.x.dtype == object

    @property
    def are_continued(self) -> bool:
        """Whether the target of each position is the token that follows, which no tokenizer has found yet."""
        return self.y.ndim == 2 and not self.y.shape[1]

    def take(self, indices: NDArray[np.int64]) -> "Samples":
        """Copy the samples at ``indices``, in that order: one after another in memory, however they lay before."""
        owner = None if self.owner is None else self.owner[indices]
        # take() would first copy all that there is, where that is no contiguous memory.
        x: Any = np.ascontiguousarray(self.x[indices])
        y: Any = np.ascontiguousarray(self.y[indices])
        return replace(self, x=x, y=y, owner=owner)


@dataclass(frozen=True)
class Dataset:
    """A data set in its two splits."""

    info: DatasetInfo
    train: Samples
    test: Samples


def dataset_names() -> list[str]:
    """The data sets this version knows, as the command line names them."""
    return sorted(_modules())


def dataset_info(name: str) -> DatasetInfo:
    """Describe the data set ``name`` without loading it; raises DataError when there is none."""
    info: DatasetInfo = _module(name).INFO
    return info


def load_dataset(name: str) -> Dataset:
    """Load the data set ``name``, from the folder EDGE_FL_DATA where it is set, else by download.

    Raises
    ------
    DataError
        When the name is unknown, or its files cannot be had or are damaged.
    """
    dataset: Dataset = _module(name).load(_folder())
    return dataset


def text_encoder(name: str) -> Callable[[str], NDArray[np.int64]]:
    """What makes a text the tokens ``[n]`` of the data set ``name``.

    Raises
    ------
    DataError
        When the data set is not one of texts, or its vocabulary is in files that cannot be had.
    """
    module = _modules().get(name)
    if module is None or not hasattr(module, "encoder"):
        texts = sorted(known for known, other in _modules().items() if hasattr(other, "encoder"))
        raise DataError(f"'{name}' has no vocabulary; {' and '.join(texts)} have.")
    encoder: Callable[[str], NDArray[np.int64]] = module.encoder(_folder())
    return encoder


def _folder() -> Path | None:
    folder = os.environ.get(_FOLDER)
    return Path(folder) if folder else None


def _module(name: str) -> ModuleType:
    modules = _modules()
    if name not in modules:
        kind = _KINDS.get(Path(name).suffix)
        meant = f"; did you mean '{kind}:{name}'?" if kind else f"; there are {', '.join(sorted(modules))}."
        raise DataError(f"There is no data set '{name}'{meant}")
    return modules[name]


def _modules() -> dict[str, ModuleType]:
    found = [importlib.import_module(f"{data.__name__}.{m.name}") for m in pkgutil.iter_modules(data.__path__)]
    infos = {module: getattr(module, "INFO", None) for module in found}
    return {info.name: module for module, info in infos.items() if isinstance(info, DatasetInfo)}
