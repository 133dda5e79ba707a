"""Named arrays as bytes: what is kept on disk of a method's state."""

import io
import zlib
from collections.abc import Mapping
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import said

__all__ = ["packed", "unpacked"]


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as an uncompressed ``.npz``."""
    named: dict[str, Any] = dict(arrays)
    held = io.BytesIO()
    np.savez(held, **named)  # numpy 2.0 would take allow_pickle for an array; reading is what forbids it
    return held.getvalue()


def unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that :func:`packed` was given; raises ValueError on damaged bytes."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except (BadZipFile, EOFError, KeyError, RuntimeError, zlib.error) as error:
        raise ValueError(said(error)) from error
