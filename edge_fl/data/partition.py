"""Which samples a client holds: data specs such as ``fashion-mnist:0/10`` or ``mnist:7/1000:labels=5``.

Every partition is a pure function of the train split, the number of clients and its kind, the same on every machine.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.data.cuts import CUTS
from edge_fl.data.registry import Samples, dataset_info, load_dataset

__all__ = ["IID", "DataSpec", "Kind", "client_samples", "partition"]

_SPEC = re.compile(r"(?P<dataset>[^:]+)(:(?P<client>[0-9]{1,9})/(?P<clients>[0-9]{1,9})(:(?P<kind>[^:]+))?)?")
_KIND = re.compile(r"(?P<name>[a-z]+)(=(?P<value>[0-9]{1,9}(\.[0-9]{1,9})?))?")


@dataclass(frozen=True)
class Kind:
    """How a data set is cut: a name in :data:`edge_fl.data.cuts.CUTS`, and the number it takes if it takes one."""

    name: str = "iid"
    value: float = 0

    @property
    def text(self) -> str:
        """As :meth:`parse` reads it."""
        return f"{self.name}={self.value:g}" if self.value else self.name

    @classmethod
    def parse(cls, text: str) -> "Kind":
        """Read ``iid``, ``labels=5``, ``dirichlet=0.5`` and so on; raises DataError on anything else."""
        match = _KIND.fullmatch(str(text))
        cut = CUTS.get(match["name"]) if match else None
        if match is None or cut is None or (match["value"] is None) != (cut.value is None):
            raise DataError(f"'{text}' is no partition; write {', '.join(c.example for c in CUTS.values())}.")
        if cut.value is None:
            return cls(match["name"])
        value = float(match["value"])
        if value <= 0:
            raise DataError(f"'{text}' gives a client nothing; the number must be above 0.")
        if cut.value is int and not value.is_integer():
            raise DataError(f"'{text}' needs a whole number.")
        return cls(match["name"], value)


IID = Kind()


@dataclass(frozen=True)
class DataSpec:
    """Share ``client`` (from 0) of ``clients`` of a data set's train split, cut as ``kind`` says."""

    dataset: str
    client: int = 0
    clients: int = 1
    kind: Kind = IID

    @classmethod
    def parse(cls, text: str) -> "DataSpec":
        """Read ``name`` (the whole train split), ``name:client/clients`` or ``name:client/clients:kind``.

        Raises DataError on anything else.
        """
        match = _SPEC.fullmatch(text)
        if match is None:
            raise DataError(
                f"'{text}' names no data; write a data set, a share of one as in 'digits:0/10', or a source as in "
                "'csv:readings.csv'."
            )
        name = dataset_info(match["dataset"]).name
        if match["client"] is None:
            return cls(name)
        client, clients = int(match["client"]), int(match["clients"])
        if client >= clients:
            raise DataError(f"'{text}' asks for client {client} of {clients}; clients are numbered from 0.")
        return cls(name, client, clients, Kind.parse(match["kind"] or "iid"))


def client_samples(spec: DataSpec) -> Samples:
    """The train samples of one client, in the data set's order.

    Raises
    ------
    DataError
        When the share is empty, or the data set cannot be loaded or cut so.
    """
    train = load_dataset(spec.dataset).train
    if spec.client >= len(train.y):
        raise _no_data(spec.client, spec.clients, len(train.y))
    return train.take(partition(train, spec.clients, spec.kind)[spec.client])


def partition(train: Samples, clients: int, kind: Kind) -> list[NDArray[np.int64]]:
    """Cut a train split: for each client the indices of its samples, ascending; no sample is given twice.

    Raises
    ------
    DataError
        When a client would have no data, or the samples lack what ``kind`` cuts them by.
    """
    n = len(train.y)
    if clients > n:
        raise _no_data(n, clients, n)
    parts = [np.sort(part) for part in CUTS[kind.name].run(train, clients, kind.value)]
    empty = next((i for i, part in enumerate(parts) if not len(part)), None)
    if empty is not None:
        raise _no_data(empty, clients, n)
    return parts


def _no_data(client: int, clients: int, samples: int) -> DataError:
    return DataError(
        f"Client {client} of {clients} has no data: there are {samples} samples; use fewer clients, or parts that "
        "differ less."
    )
