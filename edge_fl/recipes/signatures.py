"""The parameters of methods and compressors as a person reads them: defaults, and what each does."""

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from edge_fl.compressors.base import Compressor
from edge_fl.core.share import in_shares
from edge_fl.methods.base import Method

__all__ = ["defaults", "described"]

_Kind = type[Method] | type[Compressor]
_ENTRY = re.compile(r"^(\w+)\n((?: {4}.*\n?)+)", re.MULTILINE)


def defaults(kind: _Kind) -> Mapping[str, Any]:
    """By parameter, the default, where shares are numbers such as 0.5."""
    return {field.name: in_shares(field.type, field.default) for field in msgspec.structs.fields(kind.Parameters)}


def described(kind: _Kind) -> str:
    """What a method or compressor is, and a section of its parameters, as docstrings have them."""
    summary = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "").partition("\n")[0]
    said: dict[str, str] = {}
    for struct in reversed(kind.Parameters.__mro__):  # what a method says itself goes over what it shares
        said |= dict(_ENTRY.findall(inspect.cleandoc(vars(struct).get("__doc__") or "")))
    entries = [f"{key}\n{said.get(key, '')}".rstrip() for key in defaults(kind)]
    return "\n".join([summary, "", "Parameters", "----------", *entries])
