"""Named arrays as bytes: numpy's ``.npz``, read so that a damaged one allocates no more than it holds."""

import io
import math
import zlib
from collections.abc import Mapping
from typing import Any, Final
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import said

__all__ = ["packed", "unpacked"]

_DAMAGE: Final = (BadZipFile, EOFError, KeyError, NotImplementedError, OSError, RuntimeError, zlib.error)
_MOST_EXPANSION = 1032  # of deflate: a member that claims more is damaged
_HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as an uncompressed ``.npz``."""
    named: dict[str, Any] = dict(arrays)
    held = io.BytesIO()
    np.savez(held, **named)  # numpy 2.0 would take allow_pickle for an array; reading is what forbids it
    return held.getvalue()


def unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz``, compressed or not; raises ValueError on damaged bytes, and on pickled objects."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                _check(archive, member, len(content))
        with np.load(io.BytesIO(content), allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except _DAMAGE as error:
        raise ValueError(said(error)) from error


def _check(archive: ZipFile, member: ZipInfo, size: int) -> None:
    """Refuse what claims to be larger than its bytes can be, before anybody makes room for it."""
    if member.compress_size > size or member.file_size > _MOST_EXPANSION * (member.compress_size + 1):
        raise ValueError(f"'{member.filename[:80]}' claims more bytes than the file has")
    with archive.open(member) as file:
        header = _HEADERS.get(np.lib.format.read_magic(file))
        if header is None:
            raise ValueError(f"'{member.filename[:80]}' is of an unknown version")
        shape, _, dtype = header(file)
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"'{member.filename[:80]}' claims more numbers than it has")
