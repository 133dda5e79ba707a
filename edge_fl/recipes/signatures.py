"""The parameters of each method and compressor, with defaults as a person gives them."""

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from edge_fl.compressors.base import COMPRESSORS, compressor_names
from edge_fl.core.share import in_shares
from edge_fl.methods.base import METHODS

__all__ = ["defaults", "described"]


def defaults(name: str) -> Mapping[str, Any]:
    """By parameter of the method or compressor ``name``, the default, where shares are numbers such as 0.5.

    Raises ConfigError where there is neither.
    """
    fields = msgspec.structs.fields(_parameters(name))
    return {field.name: in_shares(field.type, field.default) for field in fields}


def described(name: str) -> str:
    """What each parameter of ``name`` does, those that methods share last; raises ConfigError as above."""
    structs = [kind for kind in _parameters(name).__mro__ if issubclass(kind, msgspec.Struct)][:-1]
    return "\n\n".join(inspect.cleandoc(kind.__doc__ or "") for kind in structs)


def _parameters(name: str) -> type[msgspec.Struct]:
    registry = COMPRESSORS if name in compressor_names() else METHODS
    return registry.find(name).Parameters
