"""The parameters of our methods and compressors as a person reads them: defaults, and what each does."""

import importlib
import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from edge_fl.core.share import in_shares

__all__ = ["PACKAGES", "defaults", "described"]

PACKAGES = {"METHOD": "edge_fl.methods", "COMPRESSOR": "edge_fl.compressors"}
"""Where ours are, by what a module of them defines; those of other packages are not loaded for this."""
_ENTRY = re.compile(r"^(\w+)\n((?: {4}.*\n?)+)", re.MULTILINE)


def defaults(name: str, kind: str) -> Mapping[str, Any]:
    """By parameter of ``name``, the default, where shares are numbers such as 0.5.

    Parameters
    ----------
    name
        Of one of our own, such as ``fedbiad``.
    kind
        ``METHOD`` or ``COMPRESSOR``.
    """
    fields = msgspec.structs.fields(_ours(name, kind).Parameters)
    return {field.name: in_shares(field.type, field.default) for field in fields}


def described(name: str, kind: str) -> str:
    """What ``name`` is, and a section of its parameters, as docstrings have them."""
    ours = _ours(name, kind)
    summary = inspect.cleandoc(sys.modules[ours.__module__].__doc__ or "").partition("\n")[0]
    said: dict[str, str] = {}
    for struct in reversed(ours.Parameters.__mro__):  # what a method says itself goes over what it shares
        said |= dict(_ENTRY.findall(inspect.cleandoc(vars(struct).get("__doc__") or "")))
    entries = [f"{key}\n{said.get(key, '')}".rstrip() for key in defaults(name, kind)]
    return "\n".join([summary, "", "Parameters", "----------", *entries])


def _ours(name: str, kind: str) -> Any:
    module = importlib.import_module(f"{PACKAGES[kind]}.{name.replace('+', '__')}")
    return getattr(module, kind)
