"""Which samples a client holds: data specs such as ``fashion-mnist:0/10`` or ``mnist:7/1000:labels=5``.

Every partition is a pure function of the labels, the number of clients and its kind, the same on every machine: the
draws are keyed by the seed 0 and the purpose ``partition``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.data.registry import Samples, dataset_info, load_dataset
from edge_fl.errors import DataError
from edge_fl.randomness import Stream

__all__ = ["IID", "DataSpec", "Kind", "client_samples", "partition"]

_SPEC = re.compile(r"(?P<dataset>[^:]+)(:(?P<client>[0-9]{1,9})/(?P<clients>[0-9]{1,9})(:(?P<kind>[^:]+))?)?")
_KIND = re.compile(r"(?P<name>[a-z]+)(=(?P<value>[0-9]{1,9}))?")


@dataclass(frozen=True)
class Kind:
    """How a data set is cut: ``iid``, ``labels`` (``value`` labels a client) or ``shards`` (``value`` a client)."""

    name: str = "iid"
    value: int = 0

    @classmethod
    def parse(cls, text: str) -> "Kind":
        """Read ``iid``, ``labels=5`` or ``shards=2``; raises DataError on anything else."""
        match = _KIND.fullmatch(text)
        if match is None or match["name"] not in _CUTS or (match["value"] is None) != (match["name"] == "iid"):
            raise DataError(f"'{text}' is no partition; write iid, labels=5 or shards=2.")
        kind = cls(match["name"], int(match["value"] or 0))
        if kind.name != "iid" and kind.value < 1:
            raise DataError(f"'{text}' gives a client nothing; the number must be at least 1.")
        return kind


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
            raise DataError(f"'{text}' names no data; write a data set, or a share of one as in 'digits:0/10'.")
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
    return train.take(partition(train.y, spec.clients, spec.kind)[spec.client])


def partition(labels: NDArray[np.int64], clients: int, kind: Kind) -> list[NDArray[np.int64]]:
    """Cut a train split: for each client the indices of its samples, ascending; no sample is given twice.

    Parameters
    ----------
    labels
        ``[n]`` class indices.
    clients
        How many parts.
    kind
        ``iid``: one permutation cut into parts that differ by at most one. ``labels``: each client draws that many
        of the labels, and each label is dealt in equal parts to those who drew it (Li et al., 2022, "#C=k").
        ``shards``: samples sorted by label are cut into ``clients * value`` shards, of which each client draws
        ``value`` (McMahan et al., 2017).

    Raises
    ------
    DataError
        When a client would have no data, or there are fewer labels than a client is to draw.
    """
    if clients > len(labels):
        raise _no_data(len(labels), clients, len(labels))
    parts = [np.sort(part) for part in _CUTS[kind.name](labels, clients, kind.value)]
    empty = next((i for i, part in enumerate(parts) if not len(part)), None)
    if empty is not None:
        raise _no_data(empty, clients, len(labels))
    return parts


def _no_data(client: int, clients: int, samples: int) -> DataError:
    return DataError(f"Client {client} of {clients} has no data: there are {samples} samples; use fewer clients.")


def _iid(labels: NDArray[np.int64], clients: int, value: int) -> list[NDArray[np.int64]]:
    del value
    order = Stream.of(seed=0, purpose="partition").permutation(len(labels))
    return np.array_split(order, clients)


def _labels(labels: NDArray[np.int64], clients: int, value: int) -> list[NDArray[np.int64]]:
    known = np.unique(labels)
    if value > len(known):
        raise DataError(f"A client cannot hold {value} labels of {len(known)}; lower labels=.")
    drawn = [
        known[Stream.of(seed=0, purpose="partition", index=1 + client).subset(len(known), value)]
        for client in range(clients)
    ]
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    order = Stream.of(seed=0, purpose="partition").permutation(len(labels))
    for label in known:
        owners = [client for client in range(clients) if label in drawn[client]]
        pieces = np.array_split(order[labels[order] == label], max(len(owners), 1))
        for client, piece in zip(owners, pieces, strict=False):
            parts[client].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


def _shards(labels: NDArray[np.int64], clients: int, value: int) -> list[NDArray[np.int64]]:
    shards = np.array_split(np.argsort(labels, kind="stable"), clients * value)
    dealt = Stream.of(seed=0, purpose="partition").permutation(len(shards))
    return [np.concatenate([shards[i] for i in dealt[c * value : (c + 1) * value]]) for c in range(clients)]


_CUTS: dict[str, Callable[[NDArray[np.int64], int, int], list[NDArray[np.int64]]]] = {
    "iid": _iid,
    "labels": _labels,
    "shards": _shards,
}
