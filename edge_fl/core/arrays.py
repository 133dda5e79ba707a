"""Named arrays as bytes: what is kept on disk of a method's state."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["packed", "unpacked"]


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as an uncompressed ``.npz``."""
    named: dict[str, Any] = dict(arrays)
    held = io.BytesIO()
    np.savez(held, **named)  # numpy 2.0 would take allow_pickle for an array; reading is what forbids it
    return held.getvalue()


def unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that :func:`packed` was given; raises ValueError, EOFError or BadZipFile on damaged bytes."""
    with np.load(io.BytesIO(content), allow_pickle=False) as held:
        return {name: held[name] for name in held.files}
