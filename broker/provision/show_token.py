"""How an operator hands a token on: as text, and as a QR code. Imports the package segno where a code is drawn."""

import io
from pathlib import Path

from edge_fl.core.atomic import write_atomically
from edge_fl.identity.token import Token, token_text

__all__ = ["print_token", "write_token"]


def print_token(token: Token, *, qr: bool) -> None:
    """Print a token's text, and before it a QR code where ``qr`` says so."""
    text = token_text(token)
    if qr:
        import segno

        segno.make(text, error="l", micro=False).terminal(compact=True)
    print(text)


def write_token(token: Token, folder: Path, *, qr: bool) -> Path:
    """Write ``NAME.token``, and with ``qr`` ``NAME.svg``, readable to their owner alone; returns the former.

    Raises StateError where they cannot be written.
    """
    text = token_text(token)
    path = folder / f"{token.name}.token"
    write_atomically(path, f"{text}\n".encode(), secret=True)
    if qr:
        import segno

        drawn = io.BytesIO()
        segno.make(text, error="l", micro=False).save(drawn, kind="svg", scale=4)
        write_atomically(folder / f"{token.name}.svg", drawn.getvalue(), secret=True)
    return path
