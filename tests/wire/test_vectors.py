"""The committed vectors: the codec makes them and reads them, and so does a reader that shares no code with it.

``Reader`` is written from docs/protocol.md alone, in plain Python, as another language's would be: it holds the
specification to being complete.
"""

import hashlib
import itertools
import json
import math
import runpy
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edge_fl.core.layout import Layout
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import FromDevice, ToDevice, decode_from_device, decode_to_device, encode_message

TESTS = Path(__file__).parents[1]
VECTORS = TESTS / "vectors"
FRAMES = sorted(path.stem for path in (VECTORS / "frames").glob("*.bin"))
MESSAGES = sorted(path.stem for path in (VECTORS / "messages").glob("*.bin"))


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


def test_regenerating_gives_the_committed_bytes() -> None:
    made = runpy.run_path(str(TESTS.parent / "scripts" / "make_vectors.py"))["vectors"]()
    committed = {str(p.relative_to(VECTORS)): p.read_bytes() for p in VECTORS.rglob("*") if p.is_file()}
    assert sorted(made) == sorted(committed)
    for name, content in committed.items():
        assert made[name] == content, name


def test_there_is_a_frame_of_every_kind_and_every_message() -> None:
    updates = {f"update-{mode}-{mask}" for mode in ("rows", "units") for mask in ("bitmask", "prefix", "seed")}
    assert set(FRAMES) == updates | {
        "update-most",
        "update-few",
        "update-private",
        "update-without-statistics",
        "statistics",
        "model",
        "change",
    }
    known = {cls.__struct_config__.tag for union in (FromDevice, ToDevice) for cls in union.__args__}
    assert set(MESSAGES) == known | {"task-private", "task-without-statistics"}


@pytest.mark.parametrize("name", FRAMES)
def test_a_committed_frame_decodes_to_its_description(name: str) -> None:
    described = load(f"frames/{name}.json")
    layout = msgspec.convert(load("layout.json")["layout"], Layout)
    frame = decode_frame((VECTORS / "frames" / f"{name}.bin").read_bytes(), layout)
    assert msgspec.to_builtins(frame.header) == described["header"]
    assert {b: kept.tolist() for b, kept in frame.pattern.kept.items()} == described["kept"]
    assert {
        n: {"shape": list(v.shape), "data": v.reshape(-1).tolist()} for n, v in frame.values.items()
    } == described["values"]
    assert (None if frame.sent is None else frame.sent.nonzero()[0].tolist()) == described.get("sent")


@pytest.mark.parametrize("name", MESSAGES)
def test_a_committed_message_decodes_to_its_description(name: str) -> None:
    raw, described = (VECTORS / "messages" / f"{name}.bin").read_bytes(), load(f"messages/{name}.json")
    assert msgspec.to_builtins(msgspec.msgpack.decode(raw[4:])) == described  # JSON has bytes in base64
    assert int.from_bytes(raw[:4], "little") == zlib.crc32(raw[4:])
    tag = name.partition("-")[0]
    cls = next(c for union in (FromDevice, ToDevice) for c in union.__args__ if c.__struct_config__.tag == tag)
    decode = decode_from_device if cls in FromDevice.__args__ else decode_to_device
    message = decode(raw)
    assert isinstance(message, cls)
    assert encode_message(message) == raw


# --- a second implementation


def philox(key: int, block: int) -> list[int]:
    c0, c1, c2, c3 = block % 2**32, block >> 32, 0, 0
    k0, k1 = key % 2**32, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


class Draws:
    def __init__(self, key: int) -> None:
        self.key, self.block = key, 0

    def words(self, n: int) -> list[int]:
        used = range(self.block, self.block + -(-n // 4))
        self.block = used.stop
        return [word for block in used for word in philox(self.key, block)][:n]

    def permutation(self, n: int) -> list[int]:
        words = self.words(n)
        return sorted(range(n), key=lambda i: (words[i], i))

    def subset(self, n: int, k: int) -> list[int]:
        return sorted(self.permutation(n)[:k])

    def normal(self, n: int) -> list[float]:
        pairs = -(-n // 2)
        u = [(w + 0.5) / 2**32 for w in self.words(2 * pairs)]
        radius = [math.sqrt(-2 * math.log(v)) for v in u[:pairs]]
        angle = [2 * math.pi * v for v in u[pairs:]]
        drawn = [r * turn(a) for turn in (math.cos, math.sin) for r, a in zip(radius, angle, strict=True)]
        return drawn[:n]


def draw_pattern(sizes: dict[str, int], dropout: int, key: int) -> dict[str, list[int]]:
    draws = Draws(key)
    return {name: draws.subset(J, ((1000 - dropout) * J + 500) // 1000) for name, J in sizes.items()}


def prefix_pattern(sizes: dict[str, int], width: int) -> dict[str, list[int]]:
    return {name: list(range((width * J + 999) // 1000)) for name, J in sizes.items()}


class Reader:
    """Reads a frame into what its description says."""

    def __init__(self, layout: dict[str, Any]) -> None:
        self.layout = layout
        self.sizes = {block["name"]: block["size"] for block in layout["blocks"]}

    def read(self, data: bytes) -> dict[str, Any]:
        assert data[:8] == b"EFLF\x01\0\0\0"
        head, mask, values, crc = struct.unpack("<IIQI", data[8:28])
        assert crc == zlib.crc32(data[:24] + data[28:])
        mask_at = (32 + head + 7) // 8 * 8
        values_at = (mask_at + mask + 7) // 8 * 8
        assert len(data) == values_at + values
        header = msgspec.msgpack.decode(data[32 : 32 + head])
        kept = self.kept(header["mask"], data[mask_at : mask_at + mask])
        shapes = {
            t["name"]: [len(self.indices(axis, kept)) for axis in t[header["mode"]]]
            for t in self.layout["tensors"]
        }
        section, told = data[values_at:], {}
        if header["values"] == "sparse":
            roles = {t["name"]: t["role"] for t in self.layout["tensors"]}
            n = sum(math.prod(shape) for name, shape in shapes.items() if roles[name] == "parameter")
            dense, told["sent"] = self.sparse(section, n, 4 * sum(map(math.prod, shapes.values())) - 4 * n)
        else:
            dense = list(struct.unpack(f"<{len(section) // 4}f", section))
        absent = {
            t["name"]
            for t in self.layout["tensors"]
            if t["role"] == "statistic" and "without_statistics" in header
        }
        tensors, at = {}, 0
        for name, shape in shapes.items():
            count = math.prod(shape)
            if name in absent:
                tensors[name] = {"shape": shape, "data": [0.0] * count}
                continue
            tensors[name] = {"shape": shape, "data": dense[at : at + count]}
            at += count
        assert at == len(dense)
        return {"bytes": len(data), "header": header, "kept": kept, "values": tensors, **told}

    def read_sum(self, data: bytes) -> dict[str, Any]:
        assert data[:8] == b"EFLS\x01\0\0\0"
        head, mask, values, crc = struct.unpack("<IIQI", data[8:28])
        assert crc == zlib.crc32(data[:24] + data[28:])
        mask_at = (32 + head + 7) // 8 * 8
        at = (mask_at + mask + 7) // 8 * 8
        assert len(data) == at + values
        header, tensors = msgspec.msgpack.decode(data[32 : 32 + head]), {}
        for tensor in self.layout["tensors"]:
            shape = tensor["shape"] if len(tensor["shape"]) > 1 else [1, *tensor["shape"]]
            R, S = shape[0], math.prod(shape[1:])
            bits = int.from_bytes(data[mask_at : mask_at + (R + 7) // 8], "little")
            mask_at += (R + 7) // 8
            rows = [row for row in range(R) if bits >> row & 1]
            across, arrays = S if tensor["name"] in header["entries"] else 1, []
            for columns in (across, S):
                numbers = struct.unpack_from(f"<{len(rows) * columns}q", data, at)
                at += 8 * len(numbers)
                arrays.append([list(numbers[i * columns : (i + 1) * columns]) for i in range(len(rows))])
            total = [[f"{entry % 2**64:016x}" for entry in row] for row in arrays[1]]
            tensors[tensor["name"]] = {"rows": rows, "holders": arrays[0], "total": total}
        assert at == len(data)
        return {"bytes": len(data), "header": header, "tensors": tensors}

    def sparse(self, section: bytes, n: int, rest: int) -> tuple[list[float], list[int]]:
        """The parameters, zero where not sent, and the statistics of ``rest`` bytes; and which are sent."""
        w, k = struct.unpack_from("<BI", section)
        entries = iter(struct.unpack_from(f"<{k}f", section, 5))
        bits = "".join(f"{byte:08b}" for byte in section[5 + 4 * k : len(section) - rest])
        named = k if 2 * k <= n else n - k
        low, unary, positions, at = bits[: named * w], bits[named * w :].split("0"), [], -1
        for i in range(named):
            at += 1 + (len(unary[i]) << w) + int(low[i * w : (i + 1) * w] or "0", 2)
            positions.append(at)
        sent = positions if 2 * k <= n else sorted(set(range(n)) - set(positions))
        dense = [next(entries) if i in sent else 0.0 for i in range(n)]
        return dense + list(struct.unpack(f"<{rest // 4}f", section[len(section) - rest :])), sent

    def kept(self, encoding: str, section: bytes) -> dict[str, list[int]]:
        if encoding == "prefix":
            return prefix_pattern(self.sizes, int.from_bytes(section, "little"))
        if encoding == "seed":
            return draw_pattern(
                self.sizes, int.from_bytes(section[8:], "little"), int.from_bytes(section[:8], "little")
            )
        bits, kept, start = int.from_bytes(section, "little"), {}, 0
        for name, J in self.sizes.items():
            kept[name] = [j for j in range(J) if bits >> (start + j) & 1]
            start += J
        return kept

    def indices(self, axis: list[dict[str, Any]], kept: dict[str, list[int]]) -> list[int]:
        found, start = [], 0
        for segment in axis:
            block, outer, inner = segment["block"], segment["outer"], segment["inner"]
            J = 1 if block is None else self.sizes[block]
            units = [0] if block is None else kept[block]
            found += [
                start + (o * J + j) * inner + i for o, j, i in itertools.product(range(outer), units, range(inner))
            ]
            start += outer * J * inner
        return found


@pytest.mark.parametrize("name", FRAMES)
def test_the_second_implementation_reads_the_frames(name: str) -> None:
    reader = Reader(load("layout.json")["layout"])
    described = load(f"frames/{name}.json")
    assert reader.read((VECTORS / "frames" / f"{name}.bin").read_bytes()) == described
    # Kept entries are told apart by their numbers: that the right ones are there is in the description's numbers.
    starts = list(itertools.accumulate((math.prod(t["shape"]) for t in reader.layout["tensors"]), initial=0))
    sent = described.get("sent")
    for tensor, start in zip(reader.layout["tensors"], starts, strict=False):
        axes = [reader.indices(axis, described["kept"]) for axis in tensor[described["header"]["mode"]]]
        strides = [math.prod(tensor["shape"][i + 1 :]) for i in range(len(axes))]
        flat = [sum(i * s for i, s in zip(entry, strides, strict=True)) for entry in itertools.product(*axes)]
        statistic = tensor["role"] == "statistic"
        absent = statistic and "without_statistics" in described["header"]
        whole = sent is None or statistic
        assert described["values"][tensor["name"]]["data"] == [
            (start + i) / 4 - 10 if not absent and (whole or start + i in sent) else 0.0 for i in flat
        ]


@pytest.mark.parametrize("mode", ["rows", "units"])
def test_the_second_implementation_adds_up(mode: str) -> None:
    """It reads a partial sum, and makes the same of the updates that the sum is of."""
    reader, vector = Reader(load("layout.json")["layout"]), load(f"sums/{mode}.json")
    found = reader.read_sum((VECTORS / "sums" / f"{mode}.bin").read_bytes())
    assert {**found, "updates": vector["updates"]} == vector
    for number, tensor in enumerate(reader.layout["tensors"]):
        R, S = (
            [*tensor["shape"][:1], math.prod(tensor["shape"][1:])]
            if len(tensor["shape"]) > 1
            else [1, math.prod(tensor["shape"])]
        )
        total, holders = [[0] * S for _ in range(R)], [[0] * S for _ in range(R)]
        k, largest = vector["header"]["exponents"][number], 0.0
        for name, counted in vector["updates"].items():
            clip = counted["clip"]["parameters" if tensor["role"] == "parameter" else "statistics"]
            factor = counted["weight"] * counted["discount"] * clip * 2.0**k
            update = load(f"frames/{name}.json")
            axes = [reader.indices(axis, update["kept"]) for axis in tensor[mode]]
            strides = [math.prod(tensor["shape"][i + 1 :]) for i in range(len(axes))]
            for entry, value in zip(
                itertools.product(*axes), update["values"][tensor["name"]]["data"], strict=True
            ):
                row, column = divmod(sum(i * s for i, s in zip(entry, strides, strict=True)), S)
                total[row][column] += round(factor * value)
                holders[row][column] += counted["weight"]
                largest = max(largest, counted["discount"] * clip * abs(value))
        assert 2**61 <= 2.0**k * vector["header"]["weight"] * largest < 2**62
        held = vector["tensors"][tensor["name"]]
        assert held["rows"] == [row for row in range(R) if any(holders[row])]
        assert [[int(entry, 16) for entry in row] for row in held["total"]] == [
            [entry % 2**64 for entry in total[row]] for row in held["rows"]
        ]
        by_entry = tensor["name"] in vector["header"]["entries"]
        assert held["holders"] == [holders[row] if by_entry else holders[row][:1] for row in held["rows"]]
        assert by_entry or all(len({*holders[row]}) == 1 for row in held["rows"])


def test_the_second_implementation_hashes_the_layout() -> None:
    vector = load("layout.json")
    text = json.dumps(vector["layout"], separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == vector["digest"]


def test_the_second_implementation_draws_the_words() -> None:
    for vector in load("philox.json"):
        words = [philox(int(vector["key"], 16), int(counter, 16)) for counter in vector["counters"]]
        assert [[f"{word:08x}" for word in row] for row in words] == vector["words"]


def test_the_second_implementation_draws_the_streams() -> None:
    streams = load("streams.json")
    for field in streams["keys"]:
        text = "edge-fl|{seed}|{client}|{round}|{purpose}|{index}".format_map(field)
        assert f"{int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], 'little'):016x}" == field["key"]
    for vector in streams["draws"]:
        draws = Draws(int(vector["key"], 16))
        assert draws.words(5) == vector["uint32 of 5"]
        assert draws.words(4) == vector["then uint32 of 4"]
        assert draws.permutation(10) == vector["then permutation of 10"]
        assert draws.subset(10, 4) == vector["then subset of 4 of 10"]
        assert draws.normal(3) == pytest.approx(vector["then normal of 3, to 6 places"], abs=1e-6)


def test_the_second_implementation_draws_the_patterns() -> None:
    vectors = load("patterns.json")
    for vector in vectors["seeded"]:
        assert draw_pattern(vectors["blocks"], vector["dropout"], int(vector["key"], 16)) == vector["kept"]
    for vector in vectors["prefix"]:
        assert prefix_pattern(vectors["blocks"], vector["width"]) == vector["kept"]
    for vector in vectors["kept units"]:
        assert vector["kept"] == math.floor((1000 - vector["dropout"]) * vector["units"] / 1000 + 0.5)
    for vector in vectors["prefix units"]:
        assert vector["kept"] == math.ceil(vector["width"] * vector["units"] / 1000)


def test_the_second_implementation_checks_the_signed_message() -> None:
    vector = load("signed.json")
    signed = msgspec.msgpack.decode(bytes.fromhex(vector["payload"])[4:])
    name = vector["topic"].encode()
    moments = [signed[field] for field in ("epoch", "sequence", "towards")]
    assert {field: signed[field] for field in vector["moments"]} == vector["moments"]
    text = b"edge-fl signed message 1\0" + struct.pack("<H", len(name)) + name + struct.pack("<3Q", *moments)
    first, key = (Ed25519PublicKey.from_public_bytes(bytes.fromhex(vector[who])) for who in ("first key", "key"))
    key.verify(signed["signature"], text + signed["body"])
    assert signed["body"].hex() == vector["message"]
    [successor] = signed["successors"]
    assert successor["key"].hex() == vector["key"]
    first.verify(successor["signature"], b"edge-fl coordinator key 1\0" + successor["key"])


class SecondCohort:
    """Section 6.1, entry by entry."""

    def __init__(self, roster: dict[str, Any]) -> None:
        self.reader, self.roster = Reader(load("layout.json")["layout"]), roster
        self.context = "{run}|{round}|{attempt}".format_map(roster).encode()
        self.members = {member["client"]: member for member in roster["members"]}
        self.units = {c: self.reader.kept(m["mask"], m["pattern"]) for c, m in self.members.items()}

    def entries(self, kept: dict[str, list[int]]) -> list[tuple[str, int]]:
        """Tensor and flat place of each kept entry, in the order in which they travel."""
        found = []
        for tensor in self.reader.layout["tensors"]:
            axes = [self.reader.indices(axis, kept) for axis in tensor[self.roster["mode"]]]
            strides = [math.prod(tensor["shape"][i + 1 :]) for i in range(len(axes))]
            found += [
                (tensor["name"], sum(i * s for i, s in zip(entry, strides, strict=True)))
                for entry in itertools.product(*axes)
            ]
        return found

    def shared(self, one: str, other: str) -> dict[str, list[int]]:
        return {
            block: [j for j in units if j in self.units[other][block]] for block, units in self.units[one].items()
        }

    def stream(self, secret: bytes, purpose: bytes, count: int) -> list[int]:
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose + b"\0" + self.context).derive(secret)
        words = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * count))
        return list(struct.unpack(f"<{count}I", words))

    def masked(self, client: str, secrets: dict[str, str], value: dict[tuple[str, int], float]) -> bytes:
        weight = sum(member["weight"] for member in self.members.values())
        roles = {tensor["name"]: tensor["role"] for tensor in self.reader.layout["tensors"]}
        holders: dict[tuple[str, int], int] = {}
        for member in self.members:
            for entry in self.entries(self.units[member]):
                holders[entry] = holders.get(entry, 0) + 1
        numbers: dict[tuple[str, int], int] = {}
        for entry in self.entries(self.units[client]):
            reach = self.roster["reach"] if roles[entry[0]] == "parameter" else 1024
            scale = self.members[client]["weight"] * 2.0 ** (30 - math.ceil(math.log2(weight * reach)))
            enough = holders[entry] >= self.roster["holders"]
            numbers[entry] = round(min(max(value[entry], -reach), reach) * scale) if enough else 0
        own = self.entries(self.units[client])
        for entry, mask in zip(
            own, self.stream(bytes.fromhex(secrets["seed"]), b"edge-fl seed 1", len(own)), strict=True
        ):
            numbers[entry] += mask
        key = X25519PrivateKey.from_private_bytes(bytes.fromhex(secrets["masking"]))
        for other in self.members.keys() - {client}:
            both = self.entries(self.shared(client, other))
            secret = key.exchange(X25519PublicKey.from_public_bytes(self.members[other]["masking"]))
            for entry, mask in zip(both, self.stream(secret, b"edge-fl masks 1", len(both)), strict=True):
                numbers[entry] += mask if client < other else -mask
        return struct.pack(f"<{len(own)}I", *(numbers[entry] % 2**32 for entry in own))


def test_the_second_implementation_masks_the_updates() -> None:
    vector = load("secure_aggregation.json")
    cohort = SecondCohort(msgspec.msgpack.decode(bytes.fromhex(vector["roster"])))
    everything, start = {}, 0
    for tensor in cohort.reader.layout["tensors"]:
        size = math.prod(tensor["shape"])
        everything |= {(tensor["name"], i): (start + i) / 4 - 10 for i in range(size)}
        start += size
    for client, masked in vector["masked"].items():
        assert cohort.masked(client, vector["secrets"][client], everything).hex() == masked
        seed = bytes.fromhex(vector["secrets"][client]["seed"])
        assert hashlib.sha256(b"edge-fl seed 1\0" + seed).digest() == cohort.members[client]["commitment"]
