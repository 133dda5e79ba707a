"""Shares: a number such as 0.5 for a person, thousandths in a config and on the wire."""

from collections.abc import Mapping
from numbers import Real
from typing import Annotated, Any, get_args, get_origin

import msgspec

from edge_fl.core.errors import ConfigError

__all__ = ["Share", "in_shares", "in_thousandths", "parse_width", "parse_widths", "thousandths"]

_MARK = "share"
Share = Annotated[int, msgspec.Meta(extra={_MARK: True})]
"""A parameter of a method or compressor that is kept in thousandths, and that a person gives as a share."""


def thousandths(share: float) -> int:
    """A share in [0, 1] as the integer that every language rounds alike; raises ConfigError outside."""
    value = round(share * 1000) if 0 <= share <= 1 else -1  # NaN compares false
    if value < 0 or abs(share * 1000 - value) > 1e-6:
        raise ConfigError(f"A share must be in [0, 1] and a multiple of 0.001, not {share:g}.")
    return value


def in_thousandths(kind: type[msgspec.Struct], given: Mapping[str, Any], of: str) -> dict[str, Any]:
    """The parameters ``given`` to a ``kind`` by a person, each :data:`Share` among them in thousandths.

    A share is a number or text such as ``0.2,0.5``; a parameter of one share a tier may be given one. ``of`` is what
    takes them, as in "method 'fedbiad'". Raises ConfigError.
    """
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return {name: _converted(types.get(name), name, value, of) for name, value in given.items()}


def _converted(kind: Any, name: str, value: Any, of: str) -> Any:
    listed = get_origin(kind) is tuple
    if not _is_share(get_args(kind)[0] if listed else kind):
        return value
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    try:
        given = [float(part) for part in parts]
    except (TypeError, ValueError) as error:
        several = " or, one a tier, 0.2,0.4" if listed else ""
        raise ConfigError(f"'{name}' of the {of} is a share such as 0.5{several}, not '{value}'.") from error
    try:
        shares = [thousandths(share) for share in given]
    except ConfigError as error:
        percent = [share for share in given if 1 < share <= 100]
        meant = f" {percent[0]:g} percent are {percent[0] / 100:g}." if percent else ""
        raise ConfigError(f"'{name}' of the {of}: {error}{meant}") from error
    return shares if listed or len(shares) > 1 else shares[0]


def in_shares(kind: Any, value: Any) -> Any:
    """A parameter's ``value`` as a person gives it: a :data:`Share` as a number, a list of one share as that share."""
    if get_origin(kind) is tuple and _is_share(get_args(kind)[0]):
        shares = tuple(share / 1000 for share in value)
        return shares if len(shares) > 1 else shares[0]
    return value / 1000 if _is_share(kind) else value


def _is_share(kind: Any) -> bool:
    metas = [meta for meta in get_args(kind)[1:] if isinstance(meta, msgspec.Meta)]
    return any(_MARK in (meta.extra or {}) for meta in metas)


def parse_widths(text: str) -> tuple[int, ...]:
    """``0.2,0.4,1`` in thousandths; raises ConfigError."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--widths takes shares such as 0.5 or 0.2,0.4,1.0, not '{text}'.") from error
    return tuple(dict.fromkeys(parse_width(share) for share in shares))


def parse_width(width: float) -> int:
    """A kept share in thousandths; raises ConfigError outside (0, 1]."""
    given: object = width
    value = round(width * 1000) if isinstance(given, Real) and 0 < width <= 1 else 0  # NaN compares false
    if value < 1 or abs(width * 1000 - value) > 1e-6:
        raise ConfigError(f"A width must be in (0, 1] and a multiple of 0.001, not {given!r}.")
    return value
