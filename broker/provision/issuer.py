"""The issuer of a fleet's certificates: it signs X.509 v3 and lists of revoked ones, and touches no file.

The authority's and the broker's keys are ECDSA on P-256, which every TLS speaks. The coordinator's and the devices'
keys are Ed25519, as these sign messages, too.
"""

import datetime as dt
import hashlib
import ipaddress
from collections.abc import Iterable, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge_fl.core.errors import ConfigError

__all__ = ["Issuer", "PrivateKey", "check_hosts", "key_pem", "pem_of"]

PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
_PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey

_AUTHORITY_DAYS = 3650
_EARLIER = dt.timedelta(days=1)  # clocks that are behind take a new certificate, too
_LONGEST_NAME = 64  # characters of a common name


class Issuer:
    """An authority's ``certificate`` and its ``key``."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate, self.key = certificate, key

    @classmethod
    def new(cls, name: str) -> "Issuer":
        """A new authority for ten years; ``name`` is cut at 64 characters."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name[:_LONGEST_NAME])
        certificate = (
            _builder(subject, subject, key.public_key(), days=_AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(ca=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the certificate (DER)."""
        return hashlib.sha256(self.certificate.public_bytes(Encoding.DER)).digest()

    def certify(self, name: str, key: _PublicKey, *, hosts: Sequence[str] = (), days: int) -> x509.Certificate:
        """A certificate that ``key`` is that of ``name``: of a client, and with ``hosts`` of the server that has these.

        Raises ConfigError where one of ``hosts`` is none.
        """
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = (
            _builder(self.certificate.subject, _subject(name), key, days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def revocations(self, revoked: Iterable[tuple[str, dt.datetime]], *, after: dt.datetime | None) -> bytes:
        """A list (PEM) of ``revoked`` serial numbers in hexadecimal, and since when each is.

        The list holds as long as the authority: a broker refuses everybody once its list has run out. OpenSSL follows
        the latest of the lists that a broker has read, and counts in whole seconds. So the list says that it was made a
        second ``after`` the last one or later, whatever the clock does.
        """
        now = dt.datetime.now(dt.UTC) - _EARLIER
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now if after is None else max(now, after + dt.timedelta(seconds=1)))
            .next_update(self.certificate.not_valid_after_utc)
        )
        for serial, since in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(int(serial, 16)).revocation_date(since)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def check_hosts(hosts: Iterable[str]) -> None:
    """Raise ConfigError where one of ``hosts`` is neither a host's name nor an IP address."""
    for host in hosts:
        _alternative(host)


def pem_of(certificate: x509.Certificate) -> bytes:
    """A certificate as a file has it."""
    return certificate.public_bytes(Encoding.PEM)


def key_pem(key: PrivateKey) -> bytes:
    """A key as a file has it, without a password."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _builder(issuer: x509.Name, subject: x509.Name, key: _PublicKey, *, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if address.is_unspecified:
            raise ConfigError(
                f"No device can connect to '{host}': name an address at which devices reach the broker."
            )
        return x509.IPAddress(address)
    if ":" in host:
        raise ConfigError(f"'{host[:80]}' is more than a host: give its name or address alone, and see --port.")
    try:
        if not host or any(not (letter.isalnum() or letter in ".-") for letter in host):
            raise ValueError("it has other letters than a host's name")
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"'{host[:80]}' is no host: {error}.") from error
