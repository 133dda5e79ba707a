"""How a device gets its identity by a one-time token. Imports the packages cryptography and paho-mqtt when called.

1. It fetches the listener's chain of certificates, sends nothing, and takes the authority whose hash the token names.
2. It connects again, and checks the listener's certificate and name by that authority. Only then it says the secret.
3. It makes a key, and asks for a certificate of it. The key never leaves the device.
4. It checks the certificate, and writes the identity's file.
"""

import datetime as dt
import hashlib
import socket
import ssl
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import (
    BrokerError,
    ConfigError,
    FrameError,
    LoginRefusedError,
    RefusedError,
    StateError,
    said,
)
from edge_fl.identity.certificates import Authority
from edge_fl.identity.file import identity_text
from edge_fl.identity.token import Token
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.interface import Connected, Message
from edge_fl.wire.enrol import Enrol, Enrolled, EnrolTopics, Why, decode_answer, encode_enrol

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["enrol", "request_of"]

_RETRY_SECONDS = 0.5
_ASKS_SECONDS = 3.0  # between two requests, of which one may be lost
_WHY: dict[Why, str] = {
    "expired": "The token of '{name}' has expired: have another made with `edge-fl provision token {name}`.",
    "used": "The token of '{name}' was used before: have '{name}' revoked if that was not this device, and another "
    "token made.",
    "taken": "The fleet has a device '{name}' already: have a token made for another name, or '{name}' revoked.",
    "request": "The listener takes no request of this device: use the same version of edge-fl on both sides.",
    "unavailable": "The listener can sign nothing now (its log says why): try again later.",
}


def enrol(token: Token, output: Path, *, timeout: float) -> None:
    """Get the identity that ``token`` stands for, and write it to ``output``, readable to its owner alone.

    Parameters
    ----------
    timeout
        Seconds to try for.

    Raises
    ------
    BrokerError
        When no listener answers, it is not the fleet's, or it does not know the token.
    RefusedError
        When the token has expired, was used, or its name is taken.
    StateError
        When ``output`` exists, or cannot be written.
    """
    if output.exists():
        raise StateError(f"'{output}' exists: choose another file with -o, or move it away.")
    deadline = time.monotonic() + timeout
    address = BrokerAddress.parse(token.listener)
    trusted = _authority_of(token, address, deadline)
    pending = output.with_name(f"{output.name}.key")
    key = _kept_key(pending)
    with tempfile.TemporaryDirectory() as folder:
        ca = Path(folder) / "ca.pem"
        ca.write_text(trusted)
        try:
            answer = _asked(token, address, ca, request_of(token.name, key), deadline)
        except RefusedError:
            pending.unlink(missing_ok=True)
            raise
        pem = _checked(token, answer, key, Authority(ca)) + trusted
    text = identity_text(token.name, answer.broker, pem=pem, fleet=token.fleet, coordinator=answer.coordinator)
    write_atomically(output, text.encode(), secret=True)
    pending.unlink(missing_ok=True)


def _kept_key(path: Path) -> "Ed25519PrivateKey":
    """The device's new key, which is on disk before the token is spent: a device that is killed asks again by it.

    Raises StateError where it cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    with suppress(OSError, ValueError):
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    key = Ed25519PrivateKey.generate()
    write_atomically(path, key.private_bytes_raw(), secret=True)
    return key


def _authority_of(token: Token, address: BrokerAddress, deadline: float) -> str:
    """The authority's certificate (PEM): the one that the listener shows and the token's fingerprint names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is said in this session
    while True:
        left = max(deadline - time.monotonic(), 1.0)
        try:
            with (
                socket.create_connection((address.host, address.port), timeout=left) as plain,
                context.wrap_socket(plain, server_hostname=address.host) as shown,
            ):
                chain = _chain(shown)
            break
        except ssl.SSLError as error:
            raise BrokerError(
                f"What listens at {address} speaks no TLS ({said(error)}): is that the enrol listener?"
            ) from error
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise BrokerError(
                    f"No enrol listener answers at {address} ({said(error)}): start it with `edge-fl provision listen`."
                ) from error
            time.sleep(_RETRY_SECONDS)
    for der in chain:
        if hashlib.sha256(der).digest() == token.authority:
            return ssl.DER_cert_to_PEM_cert(der)
    raise BrokerError(
        f"What listens at {address} is not of the token's fleet (another authority's fingerprint): have a token of "
        "this fleet, and see that nobody stands between."
    )


def _chain(shown: ssl.SSLSocket) -> list[bytes]:
    """All certificates (DER) that a server shows. Python has a public name for that since 3.13 only."""
    if hasattr(shown, "get_unverified_chain"):
        return list(shown.get_unverified_chain())
    inner = shown._sslobj  # type: ignore[attr-defined]
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in inner.get_unverified_chain() or ()]


def request_of(name: str, key: "Ed25519PrivateKey") -> bytes:
    """A PKCS #10 request (DER) for a certificate of ``key``."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    subject = x509.Name([x509.NameAttribute(x509.OID_COMMON_NAME, name)])
    return x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, None).public_bytes(Encoding.DER)


def _asked(token: Token, address: BrokerAddress, ca: Path, request: bytes, deadline: float) -> Enrolled:
    """The listener's answer; raises RefusedError where it refuses."""
    from edge_fl.transport.connection import Connection

    access = Access(ca=ca, user=token.id, password=token.secret.hex())
    topics = EnrolTopics(token.fleet)
    where = BrokerAddress(address.host, address.port, address.scheme, access=access)
    connection = Connection(address=where, client_id=token.id, subscriptions=[topics.answer(token.id)])
    try:
        connection.open(timeout=max(deadline - time.monotonic(), 1.0))
    except LoginRefusedError as error:
        raise LoginRefusedError(
            f"The listener at {address} does not know this token, or heard too many wrong ones: have another made, or "
            "wait a minute; its log says more."
        ) from error
    digest, asked_at = hashlib.sha256(request).digest(), -_ASKS_SECONDS
    try:
        while (now := time.monotonic()) < deadline:
            if now - asked_at >= _ASKS_SECONDS:
                connection.publish(topics.request(token.id), encode_enrol(Enrol(request)))
                asked_at = now
            event = connection.next(0.5)
            if isinstance(event, Connected):
                asked_at = -_ASKS_SECONDS
            if not isinstance(event, Message):
                continue
            try:
                answer = decode_answer(event.payload)
            except FrameError:
                continue  # it is asked again
            if answer.request != digest:
                continue  # another device has the same token
            if isinstance(answer, Enrolled):
                return answer
            raise RefusedError(_WHY[answer.why].format(name=token.name))
    finally:
        connection.close()
    raise BrokerError(f"The listener at {address} lets this device in and does not answer: see its log.")


def _checked(token: Token, answer: Enrolled, key: "Ed25519PrivateKey", authority: Authority) -> str:
    """Certificate and key (PEM), where the certificate is this key's, this name's, and holds now."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    try:
        holder = authority.holder(token.name, answer.certificate)
        fits = holder.key == key.public_key().public_bytes_raw() and holder.until > dt.datetime.now(dt.UTC)
        if not fits or not BrokerAddress.parse(answer.broker).encrypted:
            raise FrameError("certificate", "The certificate is of another key, or its broker has no TLS.")
    except (FrameError, ConfigError) as error:
        raise BrokerError(f"The listener's answer is of no use: {error} See both machines' clocks.") from error
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return ssl.DER_cert_to_PEM_cert(answer.certificate) + private
