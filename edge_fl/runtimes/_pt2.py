"""Reads programs of torch as data: no pickle, no code, no file but the archive itself.

``torch.export.load`` unpickles parts of an archive, compiles expressions and guards with ``eval``, writes names into
Python source, and looks operators up by any path that begins at ``torch``. So an archive from elsewhere would be code.
:func:`load_program` takes apart what the exporter writes, refuses all else, and gives torch a new archive of what it
has looked at.
"""

import ast
import io
import json
import re
from collections.abc import Iterator
from typing import Any, Final
from zipfile import ZIP_STORED, ZipFile

import torch

from edge_fl.core.errors import BundleError, said

__all__ = ["load_program"]

_ROOT, _MODEL = "archive/", "archive/models/model.json"
_BESIDE = "archive/extra/"  # a person's own notes; no program needs them
_EMPTY: Final = frozenset({"archive/data/sample_inputs/model.pt"})
_CONFIGS: Final = frozenset(
    {"archive/data/weights/model_weights_config.json", "archive/data/constants/model_constants_config.json"}
)
_PLAIN: Final = frozenset(
    f"{_ROOT}{name}"
    for name in ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")
)
_STORED, _TENSOR = re.compile(r"archive/data/(weights|constants)/(\w+)"), re.compile(r"(weight|tensor)_[0-9]{1,9}")

_OPERATOR = re.compile(
    r"torch\.ops\.aten\.(?!from_file\b)\w+\.\w+|torch\.ops\.higher_order\.(scan|cond|while_loop)"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
    r"|math\.(ceil|floor|sqrt|trunc)|torch\.sym_(int|float|max|min|not|ite|sum)"
)
_WORD, _KEY = re.compile(r"[\w.+-]*"), re.compile(r"[\w.*+() -]*")
_NEVER: Final = frozenset({"as_operator", "as_custom_obj"})
_SYMBOL = re.compile(r"[suz]\d{1,9}|oo|int_oo|true|false")
_FUNCTIONS = re.compile(
    "Symbol|Integer|Rational|Float|Add|Mul|Min|Max|Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|IntTrueDiv|FloatTrueDiv|ToFloat"
    "|CeilToInt|FloorToInt|TruncToInt|Eq|Ne|Gt|Ge|Lt|Le|Equality|Unequality|StrictGreaterThan|StrictLessThan|GreaterThan"
    "|LessThan|And|Or|Not"
)
_LONGEST_EXPRESSION, _LARGEST_POWER = 4000, 8
_SPECS: Final = frozenset({"in_spec", "out_spec"})
_CONTAINERS: Final = frozenset({None, "builtins.tuple", "builtins.list", "builtins.dict"})


def load_program(content: bytes, where: str) -> torch.export.ExportedProgram:
    """The program of a ``.pt2`` archive; raises BundleError where it is none, or more than data."""
    try:
        checked = _checked(content)
    except Exception as error:  # whatever bytes of a stranger make of zip files, JSON and what lies in it
        raise BundleError(
            f"{where} is no program of plain tensors ({said(error)}): export the model anew."
        ) from error
    try:
        return torch.export.load(io.BytesIO(checked))
    except Exception as error:  # torch has no common base for what it raises on programs it cannot take
        raise BundleError(f"torch {torch.__version__} cannot load {where}: {said(error)}.") from error


def _checked(content: bytes) -> bytes:
    """The archive once more, of what was looked at alone."""
    made = io.BytesIO()
    with ZipFile(io.BytesIO(content)) as archive, ZipFile(made, "w", ZIP_STORED) as checked:
        names = archive.namelist()
        if len(set(names)) != len(names) or _MODEL not in names:
            raise ValueError("its parts are not those of one program")
        for entry in archive.infolist():
            if entry.filename.startswith(_BESIDE):
                continue
            if entry.compress_type != ZIP_STORED:
                raise ValueError(f"'{entry.filename[:80]}' is compressed")
            checked.writestr(entry.filename, _part(entry.filename, archive.read(entry)))
    return made.getvalue()


def _part(name: str, content: bytes) -> bytes:
    if name == _MODEL:
        return json.dumps(_program(json.loads(content))).encode()
    if name in _CONFIGS:
        _check_config(json.loads(content))
    elif name in _EMPTY:
        if content:
            raise ValueError(f"'{name}' is not empty")
    elif name not in _PLAIN and not ((held := _STORED.fullmatch(name)) and _TENSOR.fullmatch(held[2])):
        raise ValueError(f"no program has a part '{name[:80]}'")
    return content


def _check_config(config: Any) -> None:
    for held in config["config"].values():
        if held["use_pickle"] is not False or not _TENSOR.fullmatch(held["path_name"]):
            raise ValueError("a tensor of it is pickled")
        _check(held)


def _program(program: Any) -> Any:
    """The graph without what torch does not need to run it: guards, which are code, and where nodes come from."""
    program["guards_code"] = []
    _check(program)
    return program


def _check(value: Any, key: str = "") -> None:
    """Every name is a word, every expression arithmetic, and nothing is an object."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not _KEY.fullmatch(name) or (name in _NEVER and inner is not None):
                raise ValueError(f"'{name[:80]}' is no part of a program")
            if name == "nodes" and isinstance(inner, list):
                _check_nodes(inner)
            _check(inner, name)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, key)
    elif isinstance(value, str):
        _check_text(value, key)


def _check_nodes(nodes: list[Any]) -> None:
    for node in nodes:
        node["metadata"] = {}
        if not _OPERATOR.fullmatch(node["target"]):
            raise ValueError(f"'{node['target'][:80]}' is no operator of a program")


def _check_text(text: str, key: str) -> None:
    if key == "expr_str":
        _check_expression(text)
    elif key in _SPECS:
        for kind, context in _spec(json.loads(text)):
            if kind not in _CONTAINERS or not _WORD.fullmatch(re.sub(r'["\[\], ]', "", context or "")):
                raise ValueError(f"'{str(kind)[:80]}' is no container of tensors")
    elif not _WORD.fullmatch(text):
        raise ValueError(f"'{text[:80]}' is no name")


def _spec(value: Any) -> Iterator[tuple[str | None, str | None]]:
    """The kind and context of each container in a written tree of them."""
    for node in value if isinstance(value, list) else [value]:
        if isinstance(node, dict):
            yield node["type"], node["context"]
            yield from _spec(node["children_spec"])


def _check_expression(text: str) -> None:
    """Calls of arithmetic by name, of numbers and of each other, as torch writes shapes."""
    if len(text) > _LONGEST_EXPRESSION:
        raise ValueError("a shape has no end")
    for node in ast.walk(ast.parse(text, mode="eval")):
        match node:
            case ast.Call(func=ast.Name(id="Pow"), args=[_, ast.Call(args=[ast.Constant(value=int(power))])]):
                if 0 <= power <= _LARGEST_POWER:
                    continue
            case ast.Call(func=ast.Name(id=name)) if _FUNCTIONS.fullmatch(name):
                continue
            case ast.Expression() | ast.keyword() | ast.Load() | ast.USub() | ast.UnaryOp():
                continue
            case ast.Name(id=name) if _FUNCTIONS.fullmatch(name) or name == "Pow" or _SYMBOL.fullmatch(name):
                continue
            case ast.Constant(value=int() | float()):
                continue
            case ast.Constant(value=str(word)) if _SYMBOL.fullmatch(word):
                continue
        raise ValueError(f"'{text[:80]}' is no shape")
