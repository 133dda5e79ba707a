"""Archives and compressed files, in memory: what a data set's published files are packed in."""

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from edge_fl.core.errors import DataError

__all__ = ["unpack"]

_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,  # gzip's own
    ValueError,
    NotImplementedError,  # a zip made with what zipfile does not know, or damaged so that it looks like one
    RuntimeError,  # or like an encrypted one
)


def unpack(content: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """The files in ``content``: name, without folders, and bytes.

    Parameters
    ----------
    content
        A file's bytes. They are unpacked whatever their size, so verify them first.
    where
        The file's name. By its end it is a zip, a tar (compressed or not), a gzipped file, or itself what is wanted.

    Raises
    ------
    DataError
        When the file is damaged or truncated.
    """
    try:
        if not content:
            raise EOFError("it is empty")
        if where.endswith(".zip"):
            yield from _zip(content)
        elif ".tar" in PurePosixPath(where).suffixes:
            yield from _tar(content)
        elif where.endswith(".gz"):
            yield where.removesuffix(".gz"), gzip.decompress(content)
        else:
            yield where, content
    except _DAMAGE as error:
        raise DataError(f"'{where}' is damaged: {' '.join(str(error).split()).rstrip('.')}.") from error


def _zip(content: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                yield PurePosixPath(member.filename).name, archive.read(member)


def _tar(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield PurePosixPath(member.name).name, file.read()
