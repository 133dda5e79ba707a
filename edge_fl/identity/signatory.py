"""A device's signature for other devices of its fleet, and the check of theirs."""

from pathlib import Path

from edge_fl.core.errors import FrameError
from edge_fl.identity.certificates import Authority
from edge_fl.identity.signing import SigningKey, signature_holds

__all__ = ["FleetSignatory"]


class FleetSignatory:
    """Signs by the key of an identity, and believes certificates of the same authority.

    Parameters
    ----------
    file
        The identity's.

    Attributes
    ----------
    certificate
        The identity's, X.509 in DER.

    Raises
    ------
    ConfigError
        As :meth:`edge_fl.identity.signing.SigningKey.read`.
    """

    def __init__(self, file: Path) -> None:
        self._key, self._authority = SigningKey.read(file), Authority(file)
        self.certificate = self._key.certificate

    def sign(self, data: bytes) -> bytes:
        """The signature of ``data``, 64 bytes."""
        return self._key.sign(data)

    def check(self, client: str, certificate: bytes, signature: bytes, data: bytes) -> None:
        """Raises FrameError (``certificate``, ``signature``) where ``client`` did not sign ``data``."""
        key = self._authority.holder(client, certificate).key
        if not signature_holds(key, signature, data):
            raise FrameError("signature", f"'{client}' did not sign what is said of it.")
