"""Signed messages, as either end takes them in: from a stranger, and with a signature that holds."""

from zlib import crc32

from broker.envelope import SignedEnvelope as OfCoordinator
from broker.provision.authority import Authority
from edge_fl.agent.envelope import SignedEnvelope as OfDevice
from edge_fl.core.errors import FrameError
from edge_fl.identity.signing import SigningKey
from edge_fl.wire.messages import PROTOCOL, Failed, Finished, Gone, Hello, Register, Topics, encode_message
from edge_fl.wire.signed import Signed, encode_signed, to_sign
from fuzz.target import Prepared
from fuzz.targets.files import folder

__all__ = ["coordinator", "device"]

_TOPICS = Topics()
_CRC = 4
_GONE = encode_message(Gone())[_CRC:]
_STRANGER, _FRIEND = b"\0", b"\1"


def coordinator() -> Prepared:
    """What a coordinator hears on the topic of the device tea."""
    authority, topic = Authority.create(folder(), hosts=["localhost"], port=8883), _TOPICS.up("tea")
    file = authority.device("tea")
    heard, tea = OfCoordinator(authority.folder / "coordinator.pem"), OfDevice(file, folder())
    register = Register(protocol=PROTOCOL, agent="a", runtime="onnx", samples=1)
    heard.open(topic, "tea", tea.seal(topic, register))
    key = SigningKey.read(file)
    sequence = iter(range(10, 2**53))

    def run(data: bytes) -> None:
        friend, body = data[:1] == _FRIEND, data[1:]
        payload = _sealed(body)
        if friend:
            towards = heard.epoch if len(body) % 2 else 0
            payload = _signed(key, topic, Signed(2**52, next(sequence), towards, payload, bytes(64)))
        try:
            heard.open(topic, "tea", payload)
        except FrameError:
            return
        assert friend or payload[_CRC:] == _GONE, "a stranger was believed"

    coffee = OfDevice(authority.device("coffee"), folder())
    messages = (register, Failed("run", 1, "1", "why"))
    forged = [_STRANGER + coffee.seal(topic, message)[_CRC:] for message in messages]
    return Prepared(run, forged + [_FRIEND + encode_message(message)[_CRC:] for message in messages])


def device() -> Prepared:
    """What the device tea hears on its topic."""
    authority, topic = Authority.create(folder(), hosts=["localhost"], port=8883), _TOPICS.down("tea")
    tea = OfDevice(authority.device("tea"), folder())
    key = SigningKey.read(authority.folder / "coordinator.pem")
    sequence = iter(range(10, 2**53))

    def run(data: bytes) -> None:
        friend, payload = data[:1] == _FRIEND, _sealed(data[1:])
        if friend:
            payload = _signed(key, topic, Signed(2**52, next(sequence), 0, payload, bytes(64)))
        try:
            tea.open(topic, payload)
        except FrameError:
            return
        assert friend, "a stranger was believed"

    other = Authority.create(folder(), hosts=["localhost"], port=8883).folder / "coordinator.pem"
    messages = (Hello("run"), Finished("run", 1))
    forged = [_STRANGER + OfCoordinator(other).seal(topic, message)[_CRC:] for message in messages]
    return Prepared(run, forged + [_FRIEND + encode_message(message)[_CRC:] for message in messages])


def _sealed(body: bytes) -> bytes:
    return crc32(body).to_bytes(_CRC, "little") + body


def _signed(key: SigningKey, topic: str, message: Signed) -> bytes:
    signature = key.sign(to_sign(topic, message))
    return encode_signed(Signed(message.epoch, message.sequence, message.towards, message.body, signature))
