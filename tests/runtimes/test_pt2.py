"""A program of torch is read as data: what would be code is refused, or left out."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_fl.core.errors import BundleError

torch = pytest.importorskip("torch")

from edge_fl.runtimes.torch_eager import load_program  # noqa: E402

MODEL = "archive/models/model.json"
Parts = dict[str, bytes]


class Doubled(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.reshape(-1, 2) * 2 + x.shape[0]


def saved() -> bytes:
    length = torch.export.Dim("n", min=2)
    exported = torch.export.export(Doubled(), (torch.ones(4, 2),), dynamic_shapes={"x": {0: length}})
    exported.example_inputs = None
    held = io.BytesIO()
    torch.export.save(exported, held)
    return held.getvalue()


PROGRAM = saved()


def parts() -> Parts:
    with zipfile.ZipFile(io.BytesIO(PROGRAM)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(held: Parts, compression: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    return made.getvalue()


class Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


def test_what_the_exporter_writes_is_read() -> None:
    program = load_program(PROGRAM, "p").module(check_guards=False)
    assert program(torch.ones(6, 2)).tolist() == [[8.0, 8.0]] * 6


def test_a_persons_own_notes_are_left_out() -> None:
    program = load_program(archive_of({**parts(), "archive/extra/../../notes.json": b"{}"}), "p")
    assert program.graph_signature.user_outputs


def altered(change: Callable[[Any], None]) -> bytes:
    held = parts()
    program = json.loads(held[MODEL])
    change(program)
    return archive_of({**held, MODEL: json.dumps(program).encode()})


def node(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"][-1]


def first_expression(value: Any) -> Any:
    """The first object that holds an expression."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and "expr_str" in value:
        return value
    return next((found for each in inner if (found := first_expression(each)) is not None), None)


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.hub.load",
        "torch.ops.aten.from_file.default",
        "torch.ops.load_library",
        "_operator.methodcaller",
        "_operator.attrgetter",
        "math.factorial",
        "#extension.op",
        "torch.ops.aten.add.Tensor.__call__",
    ],
)
def test_other_operators_are_refused(target: str) -> None:
    with pytest.raises(BundleError, match="is no operator of a program"):
        load_program(altered(lambda program: node(program).update(target=target)), "p")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('pathlib').Path('evil').touch()",
        "Symbol('s0').func.__globals__",
        "S('__import__')",
        "Symbol('__import__')",
        "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
        "Pow(Integer(9), Integer(99999999))",
        "Lambda",
        "[Integer(1) for Integer in (1,)]",
        "Add(" * 1001 + ")" * 1001,
        "",
    ],
)
def test_other_expressions_are_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BundleError, match="p is no program of plain tensors"):
        load_program(altered(lambda program: first_expression(program).update(expr_str=text)), "p")
    assert not list(tmp_path.iterdir())


def test_names_that_would_be_written_into_source_are_refused() -> None:
    def rename(program: Any) -> None:
        program["graph_module"]["graph"]["inputs"][0]["as_tensor"]["name"] = "x):\n    import os\n    os.abort("

    with pytest.raises(BundleError, match="is no name"):
        load_program(altered(rename), "p")


def test_guards_are_left_out(tmp_path: Path) -> None:
    guard = f"__import__('pathlib').Path({str(tmp_path / 'evil')!r}).touch()"
    exported = load_program(altered(lambda program: program.update(guards_code=[guard])), "p")
    exported.module()(torch.ones(6, 2))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "name", ["data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/model.pt"]
)
def test_nothing_is_unpickled(tmp_path: Path, name: str) -> None:
    held = io.BytesIO()
    torch.save((Evil(tmp_path / "evil"),), held)
    program = archive_of({**parts(), f"archive/{name}": held.getvalue()})
    with pytest.raises(BundleError):
        load_program(program, "p")
    assert not (tmp_path / "evil").exists()
    if "sample" in name:  # what the refusal is for: torch itself runs it
        with suppress(Exception):
            torch.export.load(io.BytesIO(program))
        assert (tmp_path / "evil").exists()


@pytest.mark.parametrize("path", ["opaque_obj_0", "custom_obj_0", "tensor_0"])
def test_no_constant_is_an_object(tmp_path: Path, path: str) -> None:
    config = {"config": {"c": {"path_name": path, "is_param": False, "use_pickle": True, "tensor_meta": None}}}
    held = {
        **parts(),
        "archive/data/constants/model_constants_config.json": json.dumps(config).encode(),
        f"archive/data/constants/{path}": pickle.dumps(Evil(tmp_path / "evil")),
    }
    with pytest.raises(BundleError):
        load_program(archive_of(held), "p")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "p is no program"),
        (PROGRAM[:-100], "p is no program"),
        (archive_of(parts(), zipfile.ZIP_DEFLATED), "is compressed"),
        (archive_of({**parts(), "archive/data/aotinductor/model/a.so": b"\x7fELF"}), "no program has a part"),
        (archive_of({**parts(), "archive/../../evil": b""}), "no program has a part"),
        (archive_of({"archive/version": b"1"}), "not those of one program"),
        (archive_of({**parts(), MODEL: b"[" * 100_000}), "p is no program"),
        (archive_of({**parts(), MODEL: b"{}"}), "cannot load p"),
    ],
    ids=["empty", "cut", "compressed", "library", "outside", "old", "deep", "hollow"],
)
def test_other_archives_are_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(BundleError, match=sentence):
        load_program(content, "p")


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_damaged_program_is_refused_or_read(data: st.DataObject) -> None:
    raw = bytearray(PROGRAM)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + 4] = data.draw(st.binary(min_size=1, max_size=8))
    with suppress(BundleError):
        load_program(bytes(raw), "p")
