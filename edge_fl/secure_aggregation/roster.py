"""Who is in a cohort: the table of holders that every member receives, and what follows from it for all alike."""

import math
from collections.abc import Collection
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.aggregation.sums import matrix_kept
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout, Mode, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Kept, Selection
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.secure_aggregation.keys import KEY, Session
from edge_fl.secure_aggregation.ring import LEAST_REACH, MOST_REACH, exponent_of
from edge_fl.secure_aggregation.statement import PublicKeys
from edge_fl.wire.masks import MaskEncoding, decode_mask
from edge_fl.wire.messages import MOST_MEMBERS, Id

__all__ = [
    "STATISTICS_REACH",
    "Cohort",
    "Member",
    "Roster",
    "decode_roster",
    "encode_roster",
    "entries",
    "largest_roster",
]

STATISTICS_REACH = 1024.0
"""A statistic's difference is cut to this."""

_Key = Annotated[bytes, msgspec.Meta(min_length=KEY, max_length=KEY)]
_Weight = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Small = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device of a cohort: what it counts, which units its update holds, and its public keys.

    ``mask`` and ``pattern`` are the encoding and section of its pattern. ``commitment`` is of the seed of its own mask.
    ``signature`` is the device's, under the ``certificate`` (DER) of its identity; both are empty without identities.
    """

    client: Id
    weight: _Weight
    samples: _Weight
    mask: MaskEncoding
    pattern: Annotated[bytes, msgspec.Meta(max_length=16 << 20)]
    encryption: _Key
    masking: _Key
    commitment: _Key
    signature: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    certificate: Annotated[bytes, msgspec.Meta(max_length=4096)] = b""

    @property
    def keys(self) -> PublicKeys:
        """Its public keys."""
        return PublicKeys(self.encryption, self.masking, self.commitment)


class Roster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cohort in an ``attempt`` at a ``round``, its members in the order of their ids.

    A member counts for its samples, but no more than the largest weight: no weight could make one update stand out of
    the sum. ``threshold`` shares give a secret back, and a row counts that ``holders`` members hold. No difference of a
    parameter counts for more than ``reach``. Updates are of ``mode``.
    """

    run: Id
    round: _Small
    attempt: _Small
    threshold: _Small
    holders: _Small
    reach: Annotated[float, msgspec.Meta(ge=LEAST_REACH, le=MOST_REACH)]
    mode: Mode
    members: Annotated[tuple[Member, ...], msgspec.Meta(min_length=2, max_length=MOST_MEMBERS)]

    def __post_init__(self) -> None:
        if not all(a.client < b.client for a, b in pairwise(self.members)):
            raise ValueError("members are in the order of their ids, each once")
        if not len(self.members) < 2 * self.threshold <= 2 * len(self.members):
            raise ValueError("the threshold is more than half of the members, and no more than all")
        most = max(member.weight for member in self.members)
        if any(member.weight != min(member.samples, most) for member in self.members):
            raise ValueError("a member counts for its samples, up to the same number for all")
        if self.holders < 2:
            raise ValueError("a row that one member holds is that member's own")

    @property
    def session(self) -> Session:
        """What the keys of its members are bound to."""
        return Session(self.run, self.round, self.attempt)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Roster)


def encode_roster(roster: Roster) -> bytes:
    """A roster as a content that members fetch."""
    return _encoder.encode(roster)


def decode_roster(content: bytes, layout: Layout) -> "Cohort":
    """Read a roster; raises FrameError (``roster``, ``mask``) on anything else."""
    try:
        return Cohort(_decoder.decode(content), layout)
    except UNREADABLE as error:
        raise FrameError("roster", f"The roster of a cohort cannot be read: {error}.") from error


class Cohort:
    """A roster with its patterns: which entries of the model who holds.

    Parameters
    ----------
    roster
        Its members.
    layout
        The model's.

    Raises
    ------
    FrameError
        ``mask`` when a member's pattern is none of the layout.
    """

    def __init__(self, roster: Roster, layout: Layout) -> None:
        self.roster, self.layout = roster, layout
        self.members = {member.client: member for member in roster.members}
        self.number = {client: number for number, client in enumerate(self.members)}
        self.patterns = {m.client: decode_mask(m.mask, m.pattern, layout) for m in roster.members}
        self._selections = {client: self._select(pattern) for client, pattern in self.patterns.items()}

    def selection(self, client: str) -> Selection:
        """What a member's update holds."""
        return self._selections[client]

    def shared(self, client: str, other: str) -> Selection:
        """What both hold."""
        return self._select(Pattern(self.layout, self.patterns[client].mask & self.patterns[other].mask))

    def _select(self, pattern: Pattern) -> Selection:
        return Selection.of(pattern, self.roster.mode)

    @cached_property
    def weight(self) -> int:
        """The sum of all weights."""
        return sum(member.weight for member in self.roster.members)

    def reach(self, tensor: Tensor) -> float:
        """The most by which an update changes an entry of ``tensor``."""
        return self.roster.reach if tensor.role == "parameter" else STATISTICS_REACH

    def exponent(self, tensor: Tensor) -> int:
        """The exponent of ``tensor``'s numbers in the ring."""
        return exponent_of(self.weight, self.reach(tensor))

    def held(self, tensor: Tensor, clients: Collection[str], *, weighted: bool = False) -> NDArray[np.float64]:
        """How many of ``clients`` hold each entry of ``tensor`` as a matrix ``[R, S]``, or their summed weights."""
        rows, columns = tensor.matrix
        if not clients:
            return np.zeros((rows, columns))
        kept = [matrix_kept(tensor, self._selections[client].axes[tensor.name]) for client in clients]
        weights = [float(self.members[client].weight) if weighted else 1.0 for client in clients]
        left = _masks([one[0] for one in kept], rows) * np.array(weights)[:, np.newaxis]
        held: NDArray[np.float64] = left.T @ _masks([one[1] for one in kept], columns)
        return held

    def thin(self, tensor: Tensor, clients: Collection[str]) -> NDArray[np.bool_]:
        """The entries of ``tensor`` that some of ``clients`` hold, and too few: bool of the tensor's shape."""
        count = self.held(tensor, clients)
        thin: NDArray[np.bool_] = ((count > 0) & (count < self.roster.holders)).reshape(tensor.shape)
        return thin


def largest_roster(layout: Layout) -> int:
    """The bytes that no roster exceeds."""
    return MOST_MEMBERS * (layout.units // 8 + (6 << 10)) + 1024


def _masks(each: list[Kept], n: int) -> NDArray[np.float64]:
    masks = np.zeros((len(each), n))
    for mask, kept in zip(masks, each, strict=True):
        mask[slice(None) if kept is None else kept] = 1.0
    return masks


def entries(selection: Selection) -> int:
    """How many entries a selection holds."""
    return sum(math.prod(selection.shape(tensor)) for tensor in selection.layout.tensors)
