"""Where a data set's files come from: the user's folder, else pooch's cache; checksummed always."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_fl.core.errors import DataError, said
from edge_fl.data.archive import unpack

__all__ = ["RemoteFile", "read_file", "read_members"]

_TIMEOUT = 10.0  # seconds of silence from the server
_RETRIES = 1
_LONGEST_REASON = 160  # characters


@dataclass(frozen=True)
class RemoteFile:
    """A published file: ``name`` is its path in the user's folder and in the cache, ``sha256`` 64 hex digits."""

    name: str
    url: str
    sha256: str


def read_members(
    published: Sequence[RemoteFile], repacked: Sequence[RemoteFile], folder: Path | None
) -> Iterator[tuple[str, bytes]]:
    """The files of a data set by name without folders, archives unpacked.

    Parameters
    ----------
    published
        What is downloaded where the folder lacks it.
    repacked
        The same in another packing, read instead where ``folder`` holds all of it; it is never downloaded.

    Raises
    ------
    DataError
        As :func:`read_file` does, and when an archive cannot be unpacked.
    """
    instead = folder is not None and all((folder / file.name).exists() for file in repacked)
    for file in repacked if instead else published:
        yield from unpack(read_file(file, folder), Path(file.name).name)


def read_file(file: RemoteFile, folder: Path | None) -> bytes:
    """The verified bytes of ``file``.

    Parameters
    ----------
    folder
        Looked in first; None when the user has none.

    Raises
    ------
    DataError
        When the file is nowhere to be had, or is another than the published one.
    """
    local = folder / file.name if folder is not None else None
    path = local if local is not None and local.exists() else _download(file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"The data file '{path}' cannot be read: {error.strerror}.") from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DataError(f"The data file '{path}' is damaged: its SHA-256 is not {file.sha256}; replace it.")
    return content


def _download(file: RemoteFile) -> Path:
    try:
        import pooch
        import pooch.utils
    except ImportError as error:
        raise DataError(
            f"'{file.name}' must be downloaded and pooch is not installed:"
            " install it, or set EDGE_FL_DATA to a folder that holds the file."
        ) from error
    pooch.utils.get_logger().setLevel(logging.CRITICAL)  # what goes wrong is told below, in one sentence
    try:
        store = pooch.create(
            path=pooch.os_cache("edge-fl"),
            base_url="",
            registry={file.name: file.sha256},
            urls={file.name: file.url},
            retry_if_failed=_RETRIES,
        )
        return Path(store.fetch(file.name, downloader=pooch.HTTPDownloader(progressbar=True, timeout=_TIMEOUT)))
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
        reason = said(error)
        if isinstance(error, OSError) and len(reason) > _LONGEST_REASON:
            reason = type(error).__name__  # requests nests its causes' representations
        raise DataError(
            f"'{file.name}' cannot be downloaded from {file.url} ({reason});"
            " set EDGE_FL_DATA to a folder that holds the file."
        ) from error
