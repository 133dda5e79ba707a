"""Which samples a client holds: data specs such as ``fashion-mnist:0/10``, client 0 of 10 with equal shares."""

import re
from dataclasses import dataclass

import numpy as np

from edge_fl.data.registry import Samples, dataset_info, load_dataset
from edge_fl.errors import DataError
from edge_fl.randomness import Stream

__all__ = ["DataSpec", "client_samples", "share"]

_SPEC = re.compile(r"(?P<dataset>[^:]+)(:(?P<client>[0-9]{1,9})/(?P<clients>[0-9]{1,9}))?")


@dataclass(frozen=True)
class DataSpec:
    """Share ``client`` (from 0) of ``clients`` of a data set's train split."""

    dataset: str
    client: int = 0
    clients: int = 1

    @classmethod
    def parse(cls, text: str) -> "DataSpec":
        """Read ``name`` (the whole train split) or ``name:client/clients``; raises DataError on anything else."""
        match = _SPEC.fullmatch(text)
        if match is None:
            raise DataError(f"'{text}' names no data; write a data set, or a share of one as in 'digits:0/10'.")
        name = dataset_info(match["dataset"]).name
        if match["client"] is None:
            return cls(name)
        client, clients = int(match["client"]), int(match["clients"])
        if client >= clients:
            raise DataError(f"'{text}' asks for client {client} of {clients}; clients are numbered from 0.")
        return cls(name, client, clients)


def client_samples(spec: DataSpec) -> Samples:
    """The train samples of one client: :func:`share` of its data set.

    Raises
    ------
    DataError
        When the share is empty, or the data set cannot be loaded.
    """
    return share(load_dataset(spec.dataset).train, spec)


def share(train: Samples, spec: DataSpec) -> Samples:
    """One client's part of a train split, in the data set's order.

    The split is cut IID: by one permutation, the same for every client, into shares that differ by at most one
    sample. Raises DataError when the share is empty.
    """
    if spec.clients == 1:
        return train
    base, larger = divmod(len(train.y), spec.clients)
    start = spec.client * base + min(spec.client, larger)
    size = base + (spec.client < larger)
    if not size:
        client = f"Client {spec.client} of {spec.clients}"
        raise DataError(
            f"{client} has no data: '{spec.dataset}' has {len(train.y)} train samples; use fewer clients."
        )
    order = Stream.of(seed=0, purpose="partition").permutation(len(train.y))
    return train.take(np.sort(order[start : start + size]))
