"""What is checked of a fleet's certificates. Imports the package cryptography when an authority is read."""

import datetime as dt
import re
from pathlib import Path
from typing import NamedTuple

from edge_fl.core.errors import FrameError

__all__ = ["BROKER", "COORDINATOR", "Authority", "Holder", "is_coordinators", "refused", "worker_name"]

BROKER = "broker"
"""The name of the broker's identity, which no device has."""

COORDINATOR = "coordinator"
"""The name of the coordinator's identity, which no device has."""


_WORKER = re.compile(rf"{COORDINATOR}-worker-[1-9][0-9]{{0,2}}")


def worker_name(number: int) -> str:
    """The name of the identity of the coordinator's worker ``number``, which no device has."""
    return f"{COORDINATOR}-worker-{number}"


def is_coordinators(name: str) -> bool:
    """Whether an identity is the coordinator's, or one of its workers'."""
    return name == COORDINATOR or _WORKER.fullmatch(name) is not None


class Holder(NamedTuple):
    """Whose certificate (DER) it is: its Ed25519 ``key``, its serial number, and ``until`` when it holds."""

    certificate: bytes
    key: bytes
    serial: int
    until: dt.datetime


class Authority:
    """The authority that issued a fleet's certificates: the last certificate of an identity's file.

    Raises ValueError, IndexError or OSError where the file has none.
    """

    def __init__(self, file: Path) -> None:
        from cryptography import x509

        self.certificate = x509.load_pem_x509_certificates(file.read_bytes())[-1]

    def holder(self, client: str, der: bytes) -> Holder:
        """What a device, ``client``, shows; raises FrameError (``certificate``) unless it is its own, and holds now."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            found = x509.load_der_x509_certificate(der)
            found.verify_directly_issued_by(self.certificate)
            key = found.public_key()
            names = found.subject.get_attributes_for_oid(x509.OID_COMMON_NAME)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion) as error:
            raise refused(client, "is not of this fleet") from error
        if is_coordinators(client):  # in secure aggregation it would be a member whose secrets it knows
            raise refused(client, "is the coordinator's, and no device's")
        now = dt.datetime.now(dt.UTC)
        if not isinstance(key, Ed25519PublicKey) or [name.value for name in names] != [client]:
            raise refused(client, "is another device's, or of another kind")
        if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
            raise refused(client, "does not hold now")
        return Holder(der, key.public_bytes_raw(), found.serial_number, found.not_valid_after_utc)


def refused(client: str, wrong: str) -> FrameError:
    """The error that says what is wrong with a certificate."""
    return FrameError("certificate", f"The certificate that '{client}' shows {wrong}.")
