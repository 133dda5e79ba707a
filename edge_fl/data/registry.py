"""Data sets by name: what every data set is, and how one is found. A new data set is one new file here."""

import importlib
import os
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from edge_fl import data
from edge_fl.errors import DataError

__all__ = ["Dataset", "DatasetInfo", "Samples", "dataset_info", "dataset_names", "load_dataset"]

_FOLDER = "EDGE_FL_DATA"


@dataclass(frozen=True)
class DatasetInfo:
    """What a model must fit: the shape of one sample without the batch axis, and the number of classes."""

    name: str
    input_shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True)
class Samples:
    """Labelled samples: ``x`` ``[n, *input_shape]`` float32 in [0, 1], ``y`` ``[n]`` int64 class indices."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def take(self, indices: NDArray[np.int64]) -> "Samples":
        """Copy the samples at ``indices``, in that order."""
        return Samples(self.x[indices], self.y[indices])


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
    folder = os.environ.get(_FOLDER)
    dataset: Dataset = _module(name).load(Path(folder) if folder else None)
    return dataset


def _module(name: str) -> ModuleType:
    modules = _modules()
    if name not in modules:
        raise DataError(f"There is no data set '{name}'; there are {', '.join(sorted(modules))}.")
    return modules[name]


def _modules() -> dict[str, ModuleType]:
    found = [importlib.import_module(f"{data.__name__}.{m.name}") for m in pkgutil.iter_modules(data.__path__)]
    infos = {module: getattr(module, "INFO", None) for module in found}
    return {info.name: module for module, info in infos.items() if isinstance(info, DatasetInfo)}
