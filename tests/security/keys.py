"""Keys that are the same in every test."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_fl.identity.signing import SigningKey


def key(number: int) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))
