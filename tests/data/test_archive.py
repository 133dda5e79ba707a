import gzip
import io
import random
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.errors import DataError
from edge_fl.data.archive import unpack

FILES = [("a.txt", b"one" * 500), ("b.bin", bytes(range(256)))]


def tar(mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{mode}") as archive:
        folder = tarfile.TarInfo("set")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in FILES:
            member = tarfile.TarInfo(f"set/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(mode: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("set")
        for name, content in FILES:
            archive.writestr(f"set/{name}", content)
    return out.getvalue()


ARCHIVES: list[tuple[str, Callable[[str], bytes]]] = [
    ("x.tar", tar),
    ("x.tar.gz", tar),
    ("x.tar.xz", tar),
    ("x.zip", zipped),
]
PACKED = {name: make(name.rpartition(".")[2].replace("tar", "")) for name, make in ARCHIVES}


@pytest.mark.parametrize("name", PACKED)
def test_files_come_out_of_an_archive_by_name(name: str) -> None:
    assert list(unpack(PACKED[name], name)) == FILES


def test_a_compressed_file_and_a_plain_one() -> None:
    assert list(unpack(gzip.compress(b"text"), "a.txt.gz")) == [("a.txt", b"text")]
    assert list(unpack(b"text", "a.txt")) == [("a.txt", b"text")]


@pytest.mark.parametrize("name", [*PACKED, "a.txt.gz"])
@pytest.mark.parametrize("keep", [0, 3, 300])
def test_a_truncated_archive_is_refused_in_one_sentence(name: str, keep: int) -> None:
    content = PACKED.get(name, gzip.compress(random.Random(0).randbytes(900)))
    with pytest.raises(DataError, match=rf"^'{name}' is damaged: [^\n]*\.$"):
        list(unpack(content[:keep], name))


@given(st.data())
def test_an_altered_archive_is_refused_or_read(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(PACKED)))
    content = bytearray(PACKED[name])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + 4] = data.draw(st.binary(max_size=6))
    with suppress(DataError):
        list(unpack(bytes(content), name))
