"""Topics and control messages (docs/protocol.md, sections 3 and 4). Bulk bytes travel as chunks, not here."""

import math
import re
from typing import Annotated, Any, Literal
from zlib import crc32

import msgspec

from edge_fl.core.content import Ref, is_digest
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.unreadable import decoded
from edge_fl.core.width_factor import MOST_FACTOR
from edge_fl.wire.masks import MaskEncoding

__all__ = [
    "DECLINED",
    "LONGEST_REASON",
    "MOST_BATCH",
    "MOST_CHUNKS",
    "MOST_MEMBERS",
    "MOST_SCORES",
    "MOST_STEPS",
    "MOST_TIERS",
    "PROTOCOL",
    "AggregationRequest",
    "Answer",
    "Clipping",
    "CollectStatistics",
    "CollectedStatistics",
    "Evaluate",
    "Evaluated",
    "Failed",
    "Final",
    "Finished",
    "FromDevice",
    "Gone",
    "Hello",
    "Id",
    "Keep",
    "Keys",
    "MakeKeys",
    "Measured",
    "Offer",
    "Refused",
    "Register",
    "Registered",
    "Request",
    "SendMasked",
    "ShareKeys",
    "Shares",
    "Task",
    "ToDevice",
    "Topics",
    "Unmask",
    "Unmasked",
    "Verdict",
    "Want",
    "check_fleet",
    "check_id",
    "checked_body",
    "decode_from_device",
    "decode_to_device",
    "encode_message",
    "sealed_body",
    "within",
]

PROTOCOL = 2
_CRC_BYTES = 4
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LONGEST_FLEET = 100  # characters
_WORKER = "0"  # the coordinator itself; ACLs let a device write to any
_INDEX = re.compile(r"[0-9]{1,9}")


MOST_TIERS = 64
"""Devices are of tiers 0 to 63."""
MOST_STEPS, MOST_BATCH = 1_000_000, 1 << 20
"""The most local steps of a task, and the most samples of a batch."""
MOST_SCORES = 16
"""The most metrics that a device is asked for."""
MOST_MEMBERS = 128
"""The most members of a cohort: each has a mask with every other."""
MOST_CHUNKS = 64
"""The most chunks that are asked for in one message."""
LONGEST_REASON = 1000
"""Characters of a reason; :func:`edge_fl.core.errors.printable` cuts it."""
DECLINED = "declined"
Id = Annotated[str, msgspec.Meta(pattern=rf"\A{_ID.pattern}\Z")]
_Word = Annotated[str, msgspec.Meta(max_length=128)]
_Worker = Annotated[str, msgspec.Meta(pattern=r"\A[1-9][0-9]{0,2}\Z")]
_Reason = Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
_Digest = Annotated[str, msgspec.Meta(max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Steps = Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
_Batch = Annotated[int, msgspec.Meta(ge=1, le=MOST_BATCH)]
_Tier = Annotated[int, msgspec.Meta(ge=0, lt=MOST_TIERS)]
_Width = Annotated[int, msgspec.Meta(ge=1, le=1000)]
_Factor = Annotated[float, msgspec.Meta(gt=0, le=MOST_FACTOR)]
_Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Sums = Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)]
_Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Sealed = Annotated[
    dict[Id, Annotated[bytes, msgspec.Meta(max_length=128)]], msgspec.Meta(max_length=MOST_MEMBERS)
]
_Changes = Annotated[tuple[Ref, ...], msgspec.Meta(max_length=4096)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag=str.lower):
    """A control message: a msgpack map whose ``type`` names the class in lower case, words apart."""


class Hello(_Message, frozen=True):
    """Coordinator to all: I am here; whoever can hear me registers. ``process`` tells two of one run apart."""

    run: Id
    process: _Word = ""


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device found in the rehearsals that it was given for ``run``: seconds a step of each, in their order, None
    for one that it cannot do.
    """

    run: Id
    step_seconds: Annotated[tuple[float | None, ...], msgspec.Meta(max_length=MOST_TIERS)]

    def __post_init__(self) -> None:
        if not all(seconds is None or 0 < seconds < math.inf for seconds in self.step_seconds):
            raise ValueError("a step takes more than 0 seconds, and not for ever")


class Register(_Message, frozen=True):
    """Device to coordinator: who I am and what I can do. Sent on every connect, on every Hello, and once measured.

    ``samples`` are those that it trains on, ``test_samples`` those that it holds out for :class:`Evaluate`.
    """

    protocol: _Count
    agent: _Word
    runtime: _Word
    samples: _Count
    tier: _Tier = 0
    platform: _Word = ""
    cpus: _Count = 0
    memory_mb: _Count = 0
    measured: Measured | None = None
    test_samples: _Count = 0


class Refused(_Message, frozen=True):
    """Coordinator to device: you are not in, and why."""

    code: _Word
    reason: _Reason


class Clipping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an update is to be made private, as the last step before its frame.

    Its L2 norm is at most ``norm``. Then noise of deviation ``noise`` is added to each entry (0: none). With ``tell``
    the frame says whether the update was within the norm before.
    """

    norm: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    noise: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    tell: bool = False


class Task(_Message, frozen=True):
    """Coordinator to device: train this model.

    ``accepted`` is the last round whose update the coordinator took from this device (0: none), from which the
    device knows whether the state it staged for that round holds. ``method`` may name a compressor too
    (``fedbiad+dgc``). Of parameters given one a tier those of ``tier`` are the device's. ``mask`` and ``pattern`` are
    the encoding and section of a pattern that the coordinator chose; ``pattern`` is empty where the device chooses.
    ``changes`` are the frames that lead to ``model`` from the one of version ``since``, for a device that still holds
    that one or a later; None where models always travel whole and need not be kept. With ``withheld`` the update says
    all but its values: those take part in secure aggregation (section 6 of the protocol). ``clipping`` is there in a
    run with differential privacy: then the update withholds its samples and its loss, too. ``without_statistics``
    is there where the update is to leave BatchNorm's statistics out.
    """

    run: Id
    round: _Count
    accepted: _Count
    model: Ref
    method: _Word
    parameters: dict[str, Any]
    steps: _Steps
    batch: _Batch
    lr: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    seed: _Seed
    tier: _Tier
    mask: MaskEncoding = "bitmask"
    pattern: Annotated[bytes, msgspec.Meta(max_length=16 << 20)] = b""
    since: _Count = 0
    changes: _Changes | None = None
    withheld: bool = False
    clipping: Clipping | msgspec.UnsetType = msgspec.UNSET
    without_statistics: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class Evaluate(_Message, frozen=True):
    """Coordinator to device: score this model on the samples that you hold out. Repeated until it is answered.

    ``model`` is the one after ``round``, which the next round trains. Of every block the first units count, as
    many as ``width`` (thousandths) says, and BatchNorm normalises by the statistics of ``statistics`` (thousandths)
    where it has them for each width. ``factor`` multiplies the outputs of every block's layer (the manifest's
    ``scaled``). ``scores`` are the names of the metrics whose sums are wanted.
    ``batch`` samples at most are looked at together, as in training, for which the device has memory. ``since`` and
    ``changes`` are as :class:`Task`'s.
    """

    run: Id
    round: _Count
    model: Ref
    width: _Width
    statistics: _Width
    batch: _Batch
    factor: _Factor = 1.0
    scores: Annotated[tuple[_Word, ...], msgspec.Meta(max_length=MOST_SCORES)] = ()
    since: _Count = 0
    changes: _Changes | None = None


class CollectStatistics(_Message, frozen=True, tag="collect_statistics"):
    """Coordinator to device: what BatchNorm statistics do your batches show? Repeated until it is answered.

    ``model`` is the one after ``round``, the last; its first units count, as :class:`Evaluate` has ``width`` and
    ``factor``. ``batch`` is how many samples a batch holds, and ``seed`` keys how they are drawn. ``since`` and
    ``changes`` are as :class:`Task`'s.
    """

    run: Id
    round: _Count
    model: Ref
    width: _Width
    batch: _Batch
    seed: _Seed
    factor: _Factor = 1.0
    since: _Count = 0
    changes: _Changes | None = None


class MakeKeys(_Message, frozen=True, tag="make_keys"):
    """Coordinator to device: make fresh keys for this attempt at the secure aggregation of a round, counted from 1.

    This and the three requests that follow are repeated until they are answered.
    """

    run: Id
    round: _Count
    attempt: _Count


class ShareKeys(_Message, frozen=True, tag="share_keys"):
    """Coordinator to device: here is your cohort; seal shares of your secrets for its members."""

    run: Id
    round: _Count
    attempt: _Count
    roster: Ref


class SendMasked(_Message, frozen=True, tag="send_masked"):
    """Coordinator to device: offer your update, masked against the members whose ``sealed`` shares these are."""

    run: Id
    round: _Count
    attempt: _Count
    sealed: _Sealed


class Unmask(_Message, frozen=True):
    """Coordinator to device: these members' updates came in; say the shares by which their sum is unmasked."""

    run: Id
    round: _Count
    attempt: _Count
    survivors: Annotated[tuple[Id, ...], msgspec.Meta(max_length=MOST_MEMBERS)]


class Registered(_Message, frozen=True):
    """Coordinator to device: you are in; ``manifest`` is the bundle's manifest.

    ``rehearsals`` are tasks to time steps of before any is set, one a tier: nothing of them is fetched or uploaded.
    """

    run: Id
    manifest: Ref
    rehearsals: Annotated[tuple[Task, ...], msgspec.Meta(max_length=MOST_TIERS)] = ()


class Want(_Message, frozen=True):
    """Receiver to sender: publish these chunks of that content (again).

    A coordinator may want a device's chunks on the topics of one of its workers.
    """

    digest: _Digest
    chunks: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=MOST_CHUNKS)]
    worker: _Worker | msgspec.UnsetType = msgspec.UNSET


class Offer(_Message, frozen=True):
    """Device to coordinator: the update of this round is ready to be fetched. Repeated until a Verdict comes.

    With an ``attempt`` it is the masked update of that attempt at secure aggregation.
    """

    run: Id
    round: _Count
    update: Ref
    attempt: _Count = 0


class Verdict(_Message, frozen=True):
    """Coordinator to device: the update was taken, or rejected and why. Only then does device state advance."""

    run: Id
    round: _Count
    digest: _Digest
    accepted: bool
    code: _Word = ""
    reason: _Reason = ""


class Evaluated(_Message, frozen=True):
    """Device to coordinator: what :class:`Evaluate` asked for, the mean loss and each metric's sums by name."""

    run: Id
    round: _Count
    samples: _Count
    loss: float
    sums: Annotated[dict[_Word, _Sums], msgspec.Meta(max_length=MOST_SCORES)] = {}


class CollectedStatistics(_Message, frozen=True, tag="collected_statistics"):
    """Device to coordinator: the frame of statistics that :class:`CollectStatistics` asked for."""

    run: Id
    round: _Count
    frame: Annotated[bytes, msgspec.Meta(max_length=1 << 30)]


class Keys(_Message, frozen=True):
    """Device to coordinator: the public halves of X25519 keys, and what commits to the seed of the device's own mask.

    ``signature`` is under the identity's ``certificate`` (DER), of these and of what the device's update said. Both are
    empty without identities.
    """

    run: Id
    round: _Count
    attempt: _Count
    encryption: _Key
    masking: _Key
    commitment: _Key
    signature: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    certificate: Annotated[bytes, msgspec.Meta(max_length=4096)] = b""


class Shares(_Message, frozen=True):
    """Device to coordinator: shares of its two secrets, sealed for each other member."""

    run: Id
    round: _Count
    attempt: _Count
    sealed: _Sealed


class Unmasked(_Message, frozen=True):
    """Device to coordinator: a share of each survivor's seed, and of the masking key of each member that left."""

    run: Id
    round: _Count
    attempt: _Count
    shares: Annotated[dict[Id, _Key], msgspec.Meta(max_length=MOST_MEMBERS)]


class Failed(_Message, frozen=True):
    """Device to coordinator: ``what`` I was asked cannot be done, and why.

    ``code`` is :data:`DECLINED` where it could be, at another time, else the error's exit code.
    """

    run: Id
    round: _Count
    code: _Word
    reason: _Reason
    what: Literal["train", "evaluate", "collect_statistics", "aggregate"] = "train"


class Gone(_Message, frozen=True):
    """The broker in a device's name (its MQTT will): the connection was lost."""


class Finished(_Message, frozen=True):
    """Coordinator to all: the run is over."""

    run: Id
    rounds: _Count


class Keep(_Message, frozen=True):
    """Device to coordinator: the run is over, and I keep its final model."""

    run: Id


class Final(_Message, frozen=True):
    """Coordinator to device: the final model, as the frame of its first units of ``width`` (thousandths).

    ``statistics`` is the width whose BatchNorm statistics suit it, where it has them for each.
    """

    run: Id
    model: Ref
    width: _Width
    statistics: _Width


AggregationRequest = MakeKeys | ShareKeys | SendMasked | Unmask
"""What a coordinator asks for in secure aggregation, in this order."""
Request = Evaluate | CollectStatistics | AggregationRequest
"""What a coordinator repeats until it is answered by a message."""
Answer = Evaluated | CollectedStatistics | Keys | Shares | Unmasked
FromDevice = Register | Want | Offer | Answer | Failed | Gone | Keep
ToDevice = Hello | Registered | Refused | Task | Request | Want | Verdict | Finished | Final

_encoder = msgspec.msgpack.Encoder()
_from_device = msgspec.msgpack.Decoder(FromDevice)
_to_device = msgspec.msgpack.Decoder(ToDevice)


def encode_message(message: FromDevice | ToDevice) -> bytes:
    """A control message: the CRC-32 of its msgpack, little-endian, and that."""
    return sealed_body(_encoder.encode(message))


def decode_from_device(data: bytes) -> FromDevice:
    """Read a device's message; raises FrameError (``checksum``, ``message``) on anything else."""
    message: FromDevice = decoded(_from_device, checked_body(data))
    return message


def decode_to_device(data: bytes) -> ToDevice:
    """Read a coordinator's message; raises FrameError (``checksum``, ``message``) on anything else."""
    message: ToDevice = decoded(_to_device, checked_body(data))
    return message


def sealed_body(body: bytes) -> bytes:
    """The CRC-32 of a message's msgpack, little-endian, and that."""
    return crc32(body).to_bytes(_CRC_BYTES, "little") + body


def checked_body(data: bytes) -> bytes:
    """What :func:`sealed_body` sealed; raises FrameError (``checksum``) on a message that was damaged."""
    body = data[_CRC_BYTES:]
    if crc32(body) != int.from_bytes(data[:_CRC_BYTES], "little") or not body:
        raise FrameError("checksum", "The message was damaged on its way.")
    return body


def check_id(name: str) -> str:
    """A client or run id, if it can stand in a topic and a file name; else raises ConfigError."""
    if not _ID.fullmatch(name):
        raise ConfigError(f"An id has 1 to 64 letters, digits, '.', '_' or '-', unlike '{name}'.")
    return name


def within(topic: str, filters: tuple[str, ...]) -> bool:
    """Whether a topic, or all that a filter stands for, is in one of ``filters``."""
    return any(_covers(allowed.split("/"), topic.split("/")) for allowed in filters)


def _covers(allowed: list[str], levels: list[str]) -> bool:
    for place, level in enumerate(allowed):
        if level == "#":
            return True
        if place >= len(levels) or levels[place] == "#" or level not in ("+", levels[place]):
            return False
    return len(levels) == len(allowed)


def check_fleet(name: str) -> str:
    """``name``, if a fleet may be called so; raises ConfigError unless topics may begin with it."""
    if not 0 < len(name) <= _LONGEST_FLEET or any(letter in "#+" or not letter.isprintable() for letter in name):
        raise ConfigError(f"A fleet's name has 1 to {_LONGEST_FLEET} characters and no '#' or '+': see --fleet.")
    return name


class Topics:
    """The topic tree of one fleet: ``<fleet>/2/...``, laid out so that one ACL pattern (%u) fences a device in.

    Parameters
    ----------
    fleet
        Keeps fleets on one broker apart.
    """

    def __init__(self, fleet: str = "edge-fl") -> None:
        self.root = f"{fleet}/{PROTOCOL}"
        self.all = f"{self.root}/all"

    def up(self, client: str, worker: str = _WORKER) -> str:
        """What a device says to the coordinator, or sends to one of its workers (``+`` for all devices)."""
        return f"{self.root}/up/{worker}/{client}"

    def wanted(self, client: str, want: Want) -> str:
        """Where a device sends what is wanted: to a worker, or to the coordinator."""
        return self.up(client) if want.worker is msgspec.UNSET else self.up(client, want.worker)

    def down(self, client: str) -> str:
        """Control messages to a device."""
        return f"{self.root}/down/{client}"

    def doctor(self, client: str) -> str:
        """What a device that examines its connection sends to itself; no coordinator reads it."""
        return f"{self.root}/doctor/{client}"

    def writable(self, client: str) -> tuple[str, ...]:
        """The filters of what a device may publish; a broker that knows who is who lets it publish nothing else."""
        return f"{self.root}/up/+/{client}/#", f"{self.doctor(client)}/#"

    def readable(self, client: str) -> tuple[str, ...]:
        """The filters of what a device may subscribe to."""
        return self.all, f"{self.down(client)}/#", f"{self.doctor(client)}/#"

    def chunk(self, side: str, digest: str, index: int) -> str:
        """Where chunk ``index`` of the content ``digest`` goes, ``side`` being an :meth:`up` or :meth:`down`."""
        return f"{side}/chunk/{digest}/{index}"

    def parse(self, topic: str, worker: str = _WORKER) -> tuple[str, str, tuple[str, int] | None]:
        """Split a topic into direction (up, down, all), client, and (digest, index) if it carries a chunk.

        Raises FrameError (``topic``) on a topic that is none of these, or is up to another than this ``worker``.
        """
        root, _, rest = topic.partition(f"{self.root}/")
        match rest.split("/") if not root else []:
            case ["all"]:
                return "all", "", None
            case ["up", to, client, *chunk] if to == worker and _ID.fullmatch(client):
                return "up", client, _chunk(chunk, topic)
            case ["down", client, *chunk] if _ID.fullmatch(client):
                return "down", client, _chunk(chunk, topic)
        raise _no_topic(topic)


def _chunk(levels: list[str], topic: str) -> tuple[str, int] | None:
    match levels:
        case []:
            return None
        case ["chunk", digest, index] if is_digest(digest) and _INDEX.fullmatch(index):
            return digest, int(index)
    raise _no_topic(topic)


def _no_topic(topic: str) -> FrameError:
    return FrameError("topic", f"No message belongs on topic '{topic[:120]}'.")
