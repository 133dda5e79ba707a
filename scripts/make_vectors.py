"""Write tests/vectors, which any other implementation is checked against (docs/protocol.md, section 8).

Usage: python scripts/make_vectors.py

The bytes depend on nothing but the protocol: a change of theirs is a change of the protocol.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from edge_fl.aggregation.bounds import WHOLE, Clip
from edge_fl.aggregation.exact_sums import Counted, ExactSum, exponents_of
from edge_fl.core.content import CHUNK_SIZE, Ref
from edge_fl.core.layout import Axis, Block, Layout, Mode, Segment, Tensor
from edge_fl.core.pattern import Pattern, kept_units, prefix_units
from edge_fl.core.randomness import Stream, philox4x32, stream_key
from edge_fl.core.selection import Selection
from edge_fl.identity.signing import Signer, SigningKey, successor_of
from edge_fl.secure_aggregation.keys import KeyPair, commitment_of
from edge_fl.secure_aggregation.masking import add_pair, add_seed, add_update, vector_of, zeros
from edge_fl.secure_aggregation.roster import Cohort, Member, Roster, encode_roster
from edge_fl.wire.frame import Header, decode_frame, encode_frame
from edge_fl.wire.masks import encode_mask
from edge_fl.wire.messages import (
    PROTOCOL,
    Clipping,
    CollectedStatistics,
    CollectStatistics,
    Evaluate,
    Evaluated,
    Failed,
    Final,
    Finished,
    FromDevice,
    Gone,
    Hello,
    Keep,
    Keys,
    MakeKeys,
    Measured,
    Offer,
    Refused,
    Register,
    Registered,
    SendMasked,
    ShareKeys,
    Shares,
    Task,
    ToDevice,
    Topics,
    Unmask,
    Unmasked,
    Verdict,
    Want,
    encode_message,
)
from edge_fl.wire.sparse import SPARSE, encode_sent
from edge_fl.wire.sum_frame import SumHeader, decode_sum, encode_sum
from edge_fl.wire.values import flatten

VECTORS = Path(__file__).resolve().parents[1] / "tests" / "vectors"

KEYS = (0, 1, 0x0123456789ABCDEF, 2**64 - 1)
DIGEST = "0123456789abcdef" * 4

_CONV: Axis = (Segment("conv"),)
_FLAT: Axis = (Segment("conv", inner=2),)
_GATES: Axis = (Segment("hidden", outer=2),)
_BOTH: Axis = (Segment("conv"), Segment(None, inner=1), Segment("hidden"))


def _free(n: int) -> Axis:
    return (Segment(None, inner=n),)


LAYOUT = Layout(
    blocks=(Block("conv", 5), Block("hidden", 4)),
    tensors=(
        Tensor("conv.weight", (5, 3), (_CONV, _free(3)), (_CONV, _free(3))),
        Tensor("lstm.weight", (8, 10), (_GATES, _free(10)), (_GATES, _FLAT)),
        Tensor("head.weight", (2, 10), (_free(2), _free(10)), (_free(2), _BOTH)),
        Tensor("head.scale", (), (), ()),
        Tensor("conv.mean", (5,), (_free(5),), (_CONV,), role="statistic"),
    ),
)


def vectors() -> dict[str, bytes]:
    """Every file of tests/vectors by its name."""
    files = {
        "layout.json": _text({"digest": LAYOUT.digest, "layout": msgspec.to_builtins(LAYOUT)}),
        "philox.json": _text(_philox()),
        "streams.json": _text(_streams()),
        "patterns.json": _text(_patterns()),
    }
    for name, frame in _frames():
        files[f"frames/{name}.bin"] = frame
        files[f"frames/{name}.json"] = _text(_describe(frame))
    for name, (frame, of) in _sums().items():
        files[f"sums/{name}.bin"] = frame
        files[f"sums/{name}.json"] = _text(_describe_sum(frame, of))
    messages = {str(type(message).__struct_config__.tag): message for message in _messages()}
    for kind, message in (
        messages | {"task-private": _private_task(), "task-without-statistics": _task_without_statistics()}
    ).items():
        name = f"messages/{kind}"
        files[f"{name}.bin"] = encode_message(message)
        files[f"{name}.json"] = _text(msgspec.to_builtins(message))
    files["signed.json"] = _text(_signed())
    files["secure_aggregation.json"] = _text(_secure_aggregation())
    return files


def _text(value: object) -> bytes:
    compact = msgspec.json.encode(value)
    return (json.dumps(json.loads(compact), indent=1, ensure_ascii=False) + "\n").encode()


def _hex(number: int) -> str:
    """64-bit numbers travel in JSON as hex: JavaScript's end at 2**53."""
    return f"{number:016x}"


def _philox() -> list[dict[str, Any]]:
    blocks = [0, 1, 2**32, 2**64 - 1]
    return [
        {
            "key": _hex(key),
            "counters": [_hex(b) for b in blocks],
            "words": [
                [f"{word:08x}" for word in row] for row in philox4x32(key, np.array(blocks, np.uint64)).tolist()
            ],
        }
        for key in KEYS
    ]


def _streams() -> dict[str, Any]:
    fields: list[dict[str, Any]] = [
        {"seed": 0, "client": "", "round": 0, "purpose": "partition", "index": 0},
        {"seed": 7, "client": "phone-3", "round": 12, "purpose": "fedbiad-pattern", "index": 2},
        {"seed": -1, "client": "a.b_c", "round": 1, "purpose": "weights", "index": 0},
    ]
    draws = []
    for key in KEYS:
        stream = Stream(key)  # one stream for all: where a draw starts depends on those before it
        draws.append(
            {
                "key": _hex(key),
                "uint32 of 5": stream.uint32(5).tolist(),
                "then uint32 of 4": stream.uint32(4).tolist(),
                "then permutation of 10": stream.permutation(10).tolist(),
                "then subset of 4 of 10": stream.subset(10, 4).tolist(),
                "then normal of 3, to 6 places": [round(x, 6) for x in stream.normal(3).tolist()],
            }
        )
    return {"keys": [{**f, "key": _hex(stream_key(**f))} for f in fields], "draws": draws}


def _patterns() -> dict[str, Any]:
    blocks = (Block("a", 5), Block("b", 1), Block("c", 37))
    layout = Layout(blocks, ())
    rates, widths = (0, 1, 200, 500, 625, 999), (1, 62, 250, 500, 1000)
    units = (1, 2, 5, 256, 1000)
    seeded = [(key, dropout, Pattern.seeded(layout, dropout, key)) for key in KEYS for dropout in rates]
    return {
        "blocks": {block.name: block.size for block in blocks},
        "kept units": [{"units": n, "dropout": p, "kept": kept_units(n, p)} for n in units for p in rates],
        "prefix units": [{"units": n, "width": w, "kept": prefix_units(n, w)} for n in units for w in widths],
        "seeded": [{"key": _hex(key), "dropout": p, "kept": _kept(pattern)} for key, p, pattern in seeded],
        "prefix": [{"width": w, "kept": _kept(Pattern.prefix(layout, w))} for w in widths],
    }


def _signed() -> dict[str, Any]:
    """A message under the second of two keys, which the first one named."""
    first, second = (SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (1, 2))
    topic = Topics().all
    payload = Signer(second, 1_800_000_000_000).seal(
        topic, Hello("run-1"), towards=7, certificate=b"DER", successors=(successor_of(first, second),)
    )
    return {
        "topic": topic,
        "first key": first.public.hex(),
        "key": second.public.hex(),
        "payload": payload.hex(),
        "message": encode_message(Hello("run-1")).hex(),
        "moments": {"epoch": 1_800_000_000_000, "sequence": 1, "towards": 7},
    }


def _secure_aggregation() -> dict[str, Any]:
    """Three members, who hold different units, and what each of them sends."""
    patterns = {
        "phone-1": Pattern.prefix(LAYOUT, 500),
        "phone-2": Pattern(LAYOUT, np.array([1, 0, 1, 1, 0, 0, 1, 0, 1], dtype=np.bool_)),
        "phone-3": Pattern.seeded(LAYOUT, 400, key=KEYS[2]),
    }
    secrets = {
        client: [KeyPair(bytes([place * 10 + n]) * 32) for n in (1, 2, 3)]
        for place, client in enumerate(patterns, 1)
    }
    members = []
    for (client, pattern), (encryption, masking, seed) in zip(patterns.items(), secrets.values(), strict=True):
        mask, section = encode_mask(pattern)
        weight = 10 * len(members) + 10
        commitment = commitment_of(seed.private)
        keys = encryption.public, masking.public, commitment
        members.append(Member(client, weight, weight, mask, section, *keys))
    cohort = Cohort(Roster("run-1", 3, 1, 2, 2, 16.0, "rows", tuple(members)), LAYOUT)
    masked = {}
    for client, (_, masking, seed) in secrets.items():
        total, selection = zeros(LAYOUT), cohort.selection(client)
        add_update(total, cohort, client, selection.gather(_tensors()), list(patterns))
        add_seed(total, cohort, client, seed.private, 1)
        for other in patterns.keys() - {client}:
            add_pair(total, cohort, (client, other), masking, 1)
        masked[client] = vector_of(total, selection).hex()
    return {
        "roster": encode_roster(cohort.roster).hex(),
        "secrets": {
            client: dict(zip(("encryption", "masking", "seed"), (k.private.hex() for k in keys), strict=True))
            for client, keys in secrets.items()
        },
        "masked": masked,
    }


def _kept(pattern: Pattern) -> dict[str, list[int]]:
    return {name: indices.tolist() for name, indices in pattern.kept.items()}


def _frames() -> Iterator[tuple[str, bytes]]:
    """Updates, one for each mask encoding in each mode and sparse ones, the model they start from, a change of it."""
    modes: tuple[Mode, ...] = ("rows", "units")
    seeded = Pattern.seeded(LAYOUT, 400, key=KEYS[2])
    patterns = {
        "bitmask": Pattern(LAYOUT, np.array([1, 0, 1, 1, 0, 0, 1, 0, 1], dtype=np.bool_)),
        "prefix": Pattern.prefix(LAYOUT, 500),
        "seed": seeded,
    }
    for mode in modes:
        for encoding, pattern in patterns.items():
            yield f"update-{mode}-{encoding}", _frame("update", mode, pattern)
    yield "update-most", _frame("update", "rows", Pattern.full(LAYOUT), every=3, sent=False)
    yield "update-few", _frame("update", "rows", Pattern.full(LAYOUT), every=7, sent=True)
    yield "statistics", _statistics()
    yield "update-without-statistics", _frame("update", "units", patterns["prefix"], without_statistics=True)
    yield "update-private", _frame("update", "units", patterns["prefix"], private=True)
    for kind in ("model", "change"):
        yield kind, _frame(kind, "units", Pattern.full(LAYOUT))


def _tensors() -> dict[str, NDArray[np.float32]]:
    """Each entry tells its place: quarters are exact in float32 and in JSON."""
    starts = np.cumsum([0, *(t.size for t in LAYOUT.tensors)]).tolist()
    return {
        t.name: (np.arange(start, start + t.size) / 4 - 10).astype(np.float32).reshape(t.shape)
        for t, start in zip(LAYOUT.tensors, starts, strict=False)
    }


def _frame(
    kind: Any,
    mode: Mode,
    pattern: Pattern,
    *,
    every: int = 0,
    sent: bool = True,
    private: bool = False,
    without_statistics: bool = False,
) -> bytes:
    """With ``every``, each such entry of the kept ones is ``sent``, or each but these."""
    header = Header(kind=kind, run="run-1", round=3, version=2, layout="", method="fedbiad", mode=mode)
    if kind == "update":
        header = msgspec.structs.replace(header, client="phone-3", samples=60, loss=0.625)
    if private:
        header = msgspec.structs.replace(header, samples=1, loss=0.0, unclipped=True)
    if without_statistics:
        header = msgspec.structs.replace(header, without_statistics=True)
    tensors = _tensors()
    if not every:
        return encode_frame(header, pattern, tensors)
    vector = flatten(Selection.of(pattern, mode), tensors)
    header = msgspec.structs.replace(header, method="vardrop", values=SPARSE)
    named = np.arange(len(vector)) % every == 0
    return encode_frame(header, pattern, tensors, encode_sent(vector, named if sent else ~named))


def _statistics() -> bytes:
    """What a client's batches show: no parameter is sent."""
    header = Header(kind="statistics", run="run-1", round=3, version=3, layout="", method="heterofl")
    header = msgspec.structs.replace(header, client="phone-3", samples=60, values=SPARSE)
    pattern, tensors = Pattern.prefix(LAYOUT, 500), _tensors()
    vector = flatten(Selection.of(pattern, "units"), tensors)
    return encode_frame(header, pattern, tensors, encode_sent(vector, np.zeros(len(vector), dtype=np.bool_)))


def _describe(data: bytes) -> dict[str, Any]:
    frame = decode_frame(data, LAYOUT)
    return {
        "bytes": len(data),
        "header": msgspec.to_builtins(frame.header),
        "kept": _kept(frame.pattern),
        "values": {
            name: {"shape": list(kept.shape), "data": kept.reshape(-1).tolist()}
            for name, kept in frame.values.items()
        },
        **({} if frame.sent is None else {"sent": np.flatnonzero(frame.sent).tolist()}),
    }


def _sums() -> dict[str, tuple[bytes, dict[str, Counted]]]:
    """Sums of two updates in each mode, with what each of these counts: the second is stale, and clipped."""
    of = {"bitmask": Counted(10, 1, WHOLE), "prefix": Counted(3, 0.5, Clip(0.3, 0.7))}
    found = {}
    for mode in ("rows", "units"):
        updates = {f"update-{mode}-{encoding}": counted for encoding, counted in of.items()}
        frames = dict(_frames())
        decoded = {name: decode_frame(frames[name], LAYOUT) for name in updates}
        reach = {
            tensor.name: max(
                updates[name].discount
                * updates[name].clip.of(tensor)
                * float(np.abs(frame.values[tensor.name]).max(initial=0))
                for name, frame in decoded.items()
            )
            for tensor in LAYOUT.tensors
        }
        total = ExactSum(LAYOUT, exponents_of(LAYOUT, sum(each.weight for each in updates.values()), reach))
        for name, counted in updates.items():
            total.add(decoded[name].selection, decoded[name].values, counted)
        header = SumHeader("run-1", 3, "", total.clients, total.weight, tuple(total.exponents.values()))
        found[mode] = encode_sum(header, LAYOUT, total.tensors()), updates
    return found


def _describe_sum(data: bytes, of: dict[str, Counted]) -> dict[str, Any]:
    found = decode_sum(data, LAYOUT)
    return {
        "bytes": len(data),
        "header": msgspec.to_builtins(found.header),
        "updates": {name: {**each._asdict(), "clip": each.clip._asdict()} for name, each in of.items()},
        "tensors": {
            name: {
                "rows": held.rows.tolist(),
                "holders": held.holders.tolist(),
                "total": [[_hex(entry % 2**64) for entry in row] for row in held.total.tolist()],
            }
            for name, held in found.tensors.items()
        },
    }


def _messages() -> list[FromDevice | ToDevice]:
    return [
        Hello("run-1"),
        Register(
            PROTOCOL,
            "0.1.0",
            "onnx",
            samples=6000,
            tier=2,
            platform="linux-aarch64",
            cpus=4,
            memory_mb=3900,
            measured=Measured("run-1", (0.25, 0.125, None)),
            test_samples=1500,
        ),
        Registered("run-1", Ref(DIGEST, 4321), (_rehearsal(),)),
        Refused("runtime", "The bundle holds no program for it."),
        Task(
            run="run-1",
            round=3,
            accepted=2,
            model=Ref(DIGEST, 3 * CHUNK_SIZE + 1),
            method="fedbiad",
            parameters={"dropout": [500], "tau": 3, "variance": 0.0, "scale": True, "mode": "rows"},
            steps=20,
            batch=20,
            lr=0.1,
            seed=7,
            tier=1,
            mask="seed",
            pattern=bytes(range(10)),
            since=1,
            changes=(Ref(DIGEST, 1500),),
        ),
        Evaluate(
            run="run-1",
            round=3,
            model=Ref(DIGEST, 3 * CHUNK_SIZE + 1),
            width=600,
            statistics=500,
            batch=20,
            factor=2.0,
            scores=("accuracy", "macro-f1"),
            since=2,
            changes=(Ref(DIGEST, 1500),),
        ),
        Evaluated("run-1", 3, samples=1500, loss=0.625, sums={"accuracy": (1125.0, 1500.0)}),
        CollectStatistics(
            run="run-1",
            round=20,
            model=Ref(DIGEST, 3 * CHUNK_SIZE + 1),
            width=500,
            factor=2.0,
            batch=20,
            seed=7,
            since=19,
            changes=(Ref(DIGEST, 1500),),
        ),
        CollectedStatistics("run-1", 20, frame=bytes(range(10))),
        Want(DIGEST, (0, 1, 3)),
        Offer("run-1", 3, Ref(DIGEST, 530_000)),
        Verdict("run-1", 3, DIGEST, accepted=False, code="pattern", reason="The pattern keeps 3 units, not 4."),
        Failed("run-1", 3, "19", "The loss is no longer finite.", "evaluate"),
        Gone(),
        Finished("run-1", 20),
        MakeKeys("run-1", 3, 1),
        Keys("run-1", 3, 1, bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96)), bytes(64), b"DER"),
        ShareKeys("run-1", 3, 1, Ref(DIGEST, 1500)),
        Shares("run-1", 3, 1, {"phone-4": bytes(range(80))}),
        SendMasked("run-1", 3, 1, {"phone-4": bytes(range(80))}),
        Unmask("run-1", 3, 1, ("phone-3", "phone-4")),
        Unmasked("run-1", 3, 1, {"phone-3": bytes(range(32)), "phone-4": bytes(range(32, 64))}),
        Keep("run-1"),
        Final("run-1", Ref(DIGEST, 1500), width=600, statistics=600),
    ]


def _private_task() -> Task:
    """One whose update is to be clipped, noised, and to say whether it was within the clip."""
    return msgspec.structs.replace(_rehearsal(), clipping=Clipping(norm=0.5, noise=0.25, tell=True))


def _task_without_statistics() -> Task:
    """One whose update is to leave BatchNorm's statistics out."""
    return msgspec.structs.replace(_rehearsal(), without_statistics=True)


def _rehearsal() -> Task:
    return Task(
        run="run-1",
        round=1,
        accepted=0,
        model=Ref("0" * 64, 0),
        method="fjord",
        parameters={"widths": [1000, 800, 600, 400, 200]},
        steps=20,
        batch=20,
        lr=0.1,
        seed=7,
        tier=2,
    )


if __name__ == "__main__":
    for name, content in vectors().items():
        (VECTORS / name).parent.mkdir(parents=True, exist_ok=True)
        (VECTORS / name).write_bytes(content)
