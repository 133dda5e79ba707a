"""Enrolment by tokens: the token's text, a device's request, the listener's answer, and the record of tokens."""

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.provision import listener
from broker.provision.authority import Authority
from broker.provision.tokens import Tokens
from edge_fl.core.errors import ConfigError, FrameError, StateError
from edge_fl.identity.enrolment import request_of
from edge_fl.identity.token import Token, token_of, token_text
from edge_fl.wire.enrol import Enrol, Enrolled, EnrolRefused, decode_answer, decode_enrol, encode_enrol
from edge_fl.wire.messages import sealed_body
from fuzz.target import Prepared
from fuzz.targets.files import folder

__all__ = ["answer", "record", "request", "token"]

_CRC = 4
_TOKEN = Token("mqtts://localhost:8884", "edge-fl", "tea", "0123456789abcdef", bytes(16), bytes(32))


def token() -> Prepared:
    """What somebody gives as a token."""

    def run(data: bytes) -> None:
        try:
            found = token_of(data.decode("latin-1"))
        except ConfigError:
            return
        assert token_of(token_text(found)) == found

    return Prepared(run, [token_text(_TOKEN).encode()])


def request() -> Prepared:
    """What a listener hears of the holder of a token that was used: nobody gets a certificate by it."""
    root = folder()
    authority, tokens = Authority.create(root, hosts=["localhost"], port=8883), Tokens(root)
    made = tokens.make(authority, "tea", hours=1.0)
    first, other = Enrol(request_of("tea", Ed25519PrivateKey.generate())), request_of("tea", _OTHER)
    given = listener.answer(root, made.id, first)
    assert isinstance(given, Enrolled)

    def run(data: bytes) -> None:
        try:
            found = listener.answer(root, made.id, decode_enrol(sealed_body(data)))
        except FrameError:
            return
        assert isinstance(found, EnrolRefused) or found.certificate == given.certificate, "it gave another"

    return Prepared(run, [encode_enrol(message)[_CRC:] for message in (first, Enrol(other), Enrol(b"0"))])


def answer() -> Prepared:
    """What a device hears of a listener."""
    messages = (Enrolled(bytes(32), b"0", bytes(32), "mqtts://localhost"), EnrolRefused(bytes(32), "used"))

    def run(data: bytes) -> None:
        try:
            found = decode_answer(sealed_body(data))
        except FrameError:
            return
        assert decode_answer(encode_enrol(found)) == found

    return Prepared(run, [encode_enrol(message)[_CRC:] for message in messages])


def record() -> Prepared:
    """The tokens that a fleet's folder keeps."""
    root = folder()
    authority = Authority.create(root, hosts=["localhost"], port=8883)
    Tokens(root).make(authority, "tea", hours=1.0)
    file = root / "tokens.json"
    seed = file.read_bytes()

    def run(data: bytes) -> None:
        file.write_bytes(data)
        try:
            kept = Tokens(root).kept
        except StateError:
            return
        assert all(not each.opens_by("guess") and each.waits in (True, False) for each in kept)
        msgspec.json.encode(kept)

    return Prepared(run, [seed])


_OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
