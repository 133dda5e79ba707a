from contextlib import suppress
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.content import CHUNK_SIZE, Ref
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.wire.messages import (
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
    Offer,
    Refused,
    Register,
    Registered,
    Task,
    ToDevice,
    Topics,
    Verdict,
    Want,
    check_id,
    decode_from_device,
    decode_to_device,
    encode_message,
    within,
)

DIGEST = "0123456789abcdef" * 4
TASK = Task("r", 1, 0, Ref(DIGEST, 9), "fedbiad", {"dropout": 0.5, "nested": [1, {"a": None}]}, 20, 20, 0.1, 7, 2)
FROM_DEVICE: list[FromDevice] = [
    Register(protocol=1, agent="0.1.0", runtime="onnx", samples=60),
    Want(DIGEST, (0, 3, 19)),
    Offer("r", 1, Ref(DIGEST, 5)),
    Evaluated("r", 1, 40, 0.75, {"accuracy": (20.0, 40.0)}),
    CollectedStatistics("r", 1, b"frame"),
    Failed("r", 1, "14", "no data"),
    Gone(),
    Keep("r"),
]
TO_DEVICE: list[ToDevice] = [
    Hello("r"),
    Registered("r", Ref(DIGEST, 0)),
    Refused("protocol", "too old"),
    TASK,
    Evaluate("r", 1, Ref(DIGEST, 9), width=500, statistics=400, batch=20, factor=2.0),
    CollectStatistics("r", 1, Ref(DIGEST, 9), width=500, batch=20, seed=7, factor=2.0),
    Want(DIGEST, ()),
    Verdict("r", 1, DIGEST, accepted=False, code="mask", reason="wrong count"),
    Finished("r", 20),
    Final("r", Ref(DIGEST, 9), width=500, statistics=400),
]
DEEP = b"\x91" * 100_000 + b"\xc0"


def sealed(body: bytes) -> bytes:
    """A message of whatever bytes, with the checksum they have."""
    return crc32(body).to_bytes(4, "little") + body


def with_parameters(raw: bytes) -> bytes:
    """A task message whose parameters are the msgpack value ``raw``."""
    fields = msgspec.to_builtins(TASK, builtin_types=(bytes,))
    del fields["parameters"]
    return sealed(msgspec.msgpack.encode({**fields, "parameters": None}).removesuffix(b"\xc0") + raw)


@pytest.mark.parametrize("message", FROM_DEVICE, ids=lambda m: type(m).__name__)
def test_what_a_device_says_is_understood(message: FromDevice) -> None:
    assert decode_from_device(encode_message(message)) == message


@pytest.mark.parametrize("message", TO_DEVICE, ids=lambda m: type(m).__name__)
def test_what_the_coordinator_says_is_understood(message: ToDevice) -> None:
    assert decode_to_device(encode_message(message)) == message


def test_a_direction_takes_only_its_own_messages() -> None:
    for message in (Hello("r"), TASK, Finished("r", 1)):
        with pytest.raises(FrameError):
            decode_from_device(encode_message(message))
    for update in (Gone(), Offer("r", 1, Ref(DIGEST, 5))):
        with pytest.raises(FrameError):
            decode_to_device(encode_message(update))


@pytest.mark.parametrize("decode", [decode_from_device, decode_to_device])
@given(data=st.binary(max_size=80))
def test_arbitrary_bytes_are_refused(decode: object, data: bytes) -> None:
    assert callable(decode)
    with pytest.raises(FrameError) as caught:
        decode(data)
    assert caught.value.code == "checksum"
    with pytest.raises(FrameError) as caught:
        decode(sealed(data))
    assert caught.value.code == ("message" if data else "checksum")


@given(data=st.data(), message=st.sampled_from([*FROM_DEVICE, *TO_DEVICE]))
def test_an_altered_message_is_refused_or_read(data: st.DataObject, message: FromDevice | ToDevice) -> None:
    raw = bytearray(encode_message(message)[4:])
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + 4] = data.draw(st.binary(max_size=8))
    for decode in (decode_from_device, decode_to_device):
        with suppress(FrameError):
            assert isinstance(decode(sealed(bytes(raw))), msgspec.Struct)


@given(data=st.data(), message=st.sampled_from(FROM_DEVICE))
def test_a_message_with_a_wrong_byte_is_never_taken_for_another(data: st.DataObject, message: FromDevice) -> None:
    raw = bytearray(encode_message(message))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError) as caught:
        decode_from_device(bytes(raw))
    assert caught.value.code == "checksum"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x81\xa1a" + DEEP,
        b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\xdf\xff\xff\xff\xff",
        b"\x81\xa1a\xa1\xff",
        b"\x81\xa1a\xd7\xff" + b"\xff" * 8,
        b"\x81\xa1a\x81\x91\x80\x01",
    ],
    ids=["deep", "long array", "long map", "no UTF-8", "no time", "no key"],
)
def test_hostile_parameters_are_refused(raw: bytes) -> None:
    assert decode_to_device(with_parameters(b"\x80")) == msgspec.structs.replace(TASK, parameters={})
    with pytest.raises(FrameError) as caught:
        decode_to_device(with_parameters(raw))
    assert caught.value.code == "message"


@pytest.mark.parametrize("cls", [*FromDevice.__args__, *ToDevice.__args__, Ref], ids=lambda cls: cls.__name__)
def test_every_number_text_and_list_of_a_message_is_bounded(cls: type[msgspec.Struct]) -> None:
    """By what msgspec itself makes of the fields; a reference and a measurement check themselves."""
    described = msgspec.inspect.type_info(cls)
    assert isinstance(described, msgspec.inspect.StructType)
    unbounded = [field.name for field in described.fields if not bounded(field.type)]
    assert unbounded == (["digest", "size"] if cls is Ref else ["parameters"] if cls is Task else [])


def bounded(kind: msgspec.inspect.Type) -> bool:
    match kind:
        case msgspec.inspect.IntType():
            return kind.ge is not None and (kind.le or kind.lt) is not None
        case msgspec.inspect.StrType() | msgspec.inspect.BytesType():
            return kind.max_length is not None or getattr(kind, "pattern", None) is not None
        case msgspec.inspect.VarTupleType(item_type=item):
            return kind.max_length is not None and bounded(item)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return kind.max_length is not None and bounded(key) and bounded(value)
        case msgspec.inspect.UnionType(types=types):
            return all(map(bounded, types))
    return True


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (Register(protocol=2, agent="a", runtime="onnx", samples=1), "tier", 2**63),
        (Register(protocol=2, agent="a", runtime="onnx", samples=1), "tier", 64),
        (Register(protocol=2, agent="a", runtime="onnx", samples=1), "tier", -1),
        (Register(protocol=2, agent="a", runtime="onnx", samples=1), "samples", 2**31),
        (Register(protocol=2, agent="a", runtime="onnx", samples=1), "memory_mb", 2**64 - 1),
        (Want(DIGEST, ()), "chunks", tuple(range(65))),
        (Want(DIGEST, ()), "chunks", (2**31,)),
        (Offer("r", 1, Ref(DIGEST, 5)), "round", 2**40),
        (Offer("r", 1, Ref(DIGEST, 5)), "run", "../r"),
        (Failed("r", 1, "14", ""), "reason", "x" * 1001),
        (Keep("r"), "run", "r\n"),
        (TASK, "round", 2**40),
        (TASK, "steps", 2**62),
        (TASK, "steps", 0),
        (TASK, "batch", 2**31),
        (TASK, "lr", float("inf")),
        (TASK, "lr", float("nan")),
        (TASK, "lr", -1.0),
        (TASK, "pattern", bytes((16 << 20) + 1)),
        (Registered("r", Ref(DIGEST, 0)), "rehearsals", (TASK,) * 1000),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_field_out_of_range_costs_its_message(message: FromDevice | ToDevice, field: str, value: object) -> None:
    decode = decode_from_device if isinstance(message, FromDevice) else decode_to_device
    assert decode(encode_message(message)) == message
    with pytest.raises(FrameError) as caught:
        decode(encode_message(msgspec.structs.replace(message, **{field: value})))
    assert caught.value.code == "message"


def test_no_content_is_larger_than_can_be() -> None:
    assert Ref(DIGEST, 2**32).chunks == 2**14
    with pytest.raises(ValueError, match="a size of 0 to"):
        Ref(DIGEST, 2**32 + 1)


@pytest.mark.parametrize(
    ("digest", "size"), [("0" * 63, 1), ("0" * 65, 1), ("G" * 64, 1), (DIGEST, -1), (DIGEST + "\n", 1)]
)
def test_a_reference_names_a_sha256_and_a_size(digest: str, size: int) -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        Ref(digest, size)
    raw = msgspec.msgpack.encode(
        {"type": "offer", "run": "r", "round": 1, "update": {"digest": digest, "size": size}}
    )
    with pytest.raises(FrameError) as caught:
        decode_from_device(sealed(raw))
    assert caught.value.code == "message"


@pytest.mark.parametrize(("size", "chunks"), [(0, 0), (1, 1), (CHUNK_SIZE, 1), (CHUNK_SIZE + 1, 2)])
def test_a_reference_counts_its_chunks(size: int, chunks: int) -> None:
    assert Ref(DIGEST, size).chunks == chunks


TOPICS = Topics("school")
CLIENTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True)


@given(CLIENTS, st.integers(0, 10**9 - 1))
def test_topics_are_read_back(client: str, index: int) -> None:
    assert check_id(client) == client
    assert TOPICS.parse(TOPICS.all) == ("all", "", None)
    for direction, side in (("up", TOPICS.up(client)), ("down", TOPICS.down(client))):
        assert TOPICS.parse(side) == (direction, client, None)
        assert TOPICS.parse(TOPICS.chunk(side, DIGEST, index)) == (direction, client, (DIGEST, index))


def test_topics_are_laid_out_as_documented() -> None:
    assert Topics().all == "edge-fl/2/all"
    assert TOPICS.up("a") == "school/2/up/0/a"
    assert TOPICS.chunk(TOPICS.down("a"), DIGEST, 7) == f"school/2/down/a/chunk/{DIGEST}/7"


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "all",
        "up/a",
        "edge-fl/2/up/0/a",
        "school/9/up/0/a",
        "school/2/up/a",
        "school/2/up/1/a",
        "school/2/up//a",
        "x/school/2/all",
        "school/2/",
        "school/2/up",
        "school/2/up/0/",
        "school/2/up/0/a/",
        "school/2/up/0/+",
        "school/2/up/0/..",
        "school/2/sideways/a",
        "school/2/up/0/a/chunk",
        f"school/2/up/0/a/chunk/{DIGEST}",
        f"school/2/up/0/a/chunk/{DIGEST}/-1",
        f"school/2/up/0/a/chunk/{DIGEST}/²",
        f"school/2/up/0/a/chunk/{DIGEST}/1/2",
        f"school/2/up/0/a/chunk/{DIGEST[1:]}/1",
        f"school/2/up/0/a/chunk/{DIGEST}/" + "9" * 5000,
    ],
)
def test_a_foreign_topic_is_refused(topic: str) -> None:
    with pytest.raises(FrameError) as caught:
        TOPICS.parse(topic)
    assert caught.value.code == "topic"
    assert len(str(caught.value)) < 200


@given(st.text(max_size=60), st.booleans())
def test_arbitrary_topics_are_refused_or_read(text: str, inside: bool) -> None:
    topic = f"school/2/{text}" if inside else text
    with suppress(FrameError):
        direction, client, _ = TOPICS.parse(topic)
        assert topic == {"all": TOPICS.all, "up": TOPICS.up(client), "down": TOPICS.down(client)}[direction]


@pytest.mark.parametrize(
    ("topic", "allowed", "there"),
    [
        ("a", "a", True),
        ("a/b", "a", False),
        ("a", "a/#", True),
        ("a/b/c", "a/#", True),
        ("ab", "a/#", False),
        ("a/b/c", "a/+/c", True),
        ("a/b/c", "a/+/c/#", True),
        ("a/b/c/d", "a/+/c", False),
        ("a/c", "a/+/c/#", False),
        ("a/b/d", "a/+/c/#", False),
        ("a/+/c", "a/+/c/#", True),  # all that a filter stands for
        ("a/+/c", "a/b/c", False),
        ("a/#", "a/+/c/#", False),
        ("#", "a/#", False),
        ("+/b", "a/#", False),
    ],
)
def test_what_a_filter_holds(topic: str, allowed: str, there: bool) -> None:
    assert within(topic, (allowed,)) is there
    assert within(topic, ("x", allowed)) is there


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a/b", "a+", "#", "ä", "a\n", "a" * 65])
def test_an_id_that_cannot_stand_in_a_topic_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="letters"):
        check_id(name)
