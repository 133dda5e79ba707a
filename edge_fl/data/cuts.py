"""The ways to cut a train split over clients. A new one is a function here and a line in ``CUTS``.

Each takes samples, the number of clients and the value behind ``=``, and gives each client's indices, in any order; no
index is given twice. Every draw is keyed by the seed 0, the purpose ``partition`` and an index of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.core.randomness import Stream
from edge_fl.data.dirichlet import draw_dirichlet
from edge_fl.data.registry import Samples

__all__ = ["CUTS", "Cut", "Parts"]

Parts = Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class Cut:
    """A way to cut, the kind of number it takes (a count from 1, a number above 0, or none), and how one writes it."""

    run: Callable[[Samples, int, float], Parts]
    value: type[int] | type[float] | None
    example: str


def _stream(index: int = 0) -> Stream:
    return Stream.of(seed=0, purpose="partition", index=index)


def _iid(samples: Samples, clients: int, value: float) -> Parts:
    """One permutation cut into parts that differ by at most one."""
    del value
    return np.array_split(_stream().permutation(len(samples.y)), clients)


def _labels(samples: Samples, clients: int, value: float) -> Parts:
    """Each client draws that many labels; each label is dealt in equal parts to those who drew it (Li et al., 2022)."""
    labels, count = _one_label(samples), int(value)
    known = np.unique(labels)
    if count > len(known):
        raise DataError(f"A client cannot hold {count} labels of {len(known)}; lower labels=.")
    drawn = [known[_stream(1 + client).subset(len(known), count)] for client in range(clients)]
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    order = _stream().permutation(len(labels))
    for label in known:
        holders = [client for client in range(clients) if label in drawn[client]]
        pieces = np.array_split(order[labels[order] == label], max(len(holders), 1))
        for client, piece in zip(holders, pieces, strict=False):
            parts[client].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


def _shards(samples: Samples, clients: int, value: float) -> Parts:
    """Samples sorted by label are cut into shards, of which each client draws that many (McMahan et al., 2017)."""
    count = int(value)
    shards = np.array_split(np.argsort(_one_label(samples), kind="stable"), clients * count)
    dealt = _stream().permutation(len(shards))
    return [np.concatenate([shards[i] for i in dealt[c * count : (c + 1) * count]]) for c in range(clients)]


def _dirichlet(samples: Samples, clients: int, value: float) -> Parts:
    """Each label is dealt in shares drawn from Dirichlet(value, ..., value) (Yurochkin et al., 2019)."""
    labels = _one_label(samples)
    order = _stream().permutation(len(labels))
    dealt = [
        _shared(order[labels[order] == label], draw_dirichlet(_stream(1 + i), value, clients))
        for i, label in enumerate(np.unique(labels))
    ]
    return [np.concatenate(pieces) for pieces in zip(*dealt, strict=True)]


def _sizes(samples: Samples, clients: int, value: float) -> Parts:
    """Alike in what they hold, not in how much: one sample each, and of the rest shares drawn from
    Dirichlet(value, ..., value) (Li et al., 2022).
    """
    order = _stream().permutation(len(samples.y))
    rest = _shared(order[clients:], draw_dirichlet(_stream(1), value, clients))
    return [np.append(part, first) for first, part in zip(order[:clients], rest, strict=True)]


def _owners(samples: Samples, clients: int, value: float) -> Parts:
    """Each client is an owner, or a group of owners drawn at random; groups differ by at most one owner."""
    del value
    if samples.owner is None:
        raise DataError("This data set does not say whose its samples are, so it cannot be cut by owners.")
    owners = np.unique(samples.owner)
    if clients > len(owners):
        raise DataError(f"{len(owners)} owners cannot be {clients} clients; use fewer clients.")
    groups = np.array_split(owners[_stream().permutation(len(owners))], clients)
    return [np.flatnonzero(np.isin(samples.owner, group)) for group in groups]


def _one_label(samples: Samples) -> NDArray[np.int64]:
    if samples.y.ndim > 1:
        raise DataError(
            f"A sample of this data set has {samples.y[0].size} targets and no label of its own to be cut by; use iid, "
            "sizes=1 or, where owners are known, owners."
        )
    if samples.y.dtype != np.int64:
        raise DataError("These targets are numbers, not labels to be cut by; use iid, sizes=1 or owners.")
    return samples.y.astype(np.int64, copy=False)


def _shared(indices: NDArray[np.int64], shares: NDArray[np.float64]) -> Parts:
    return np.split(indices, np.rint(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64))


CUTS = {
    "iid": Cut(_iid, None, "iid"),
    "labels": Cut(_labels, int, "labels=5"),
    "shards": Cut(_shards, int, "shards=2"),
    "dirichlet": Cut(_dirichlet, float, "dirichlet=0.5"),
    "sizes": Cut(_sizes, float, "sizes=1"),
    "owners": Cut(_owners, None, "owners"),
}
