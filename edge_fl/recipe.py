"""A method, and perhaps a compressor on top of it: what ``fedbiad+dgc`` names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from edge_fl.compressors.base import Compressor, open_compressor
from edge_fl.errors import ConfigError
from edge_fl.methods.base import Method, open_method

__all__ = ["Recipe", "open_recipe"]


@dataclass(frozen=True)
class Recipe:
    """What clients train with, and how their updates are encoded (float32 without a compressor)."""

    method: Method
    compressor: Compressor | None = None

    @property
    def name(self) -> str:
        """``method`` or ``method+compressor``, as :func:`open_recipe` reads it."""
        return self.method.name if self.compressor is None else f"{self.method.name}+{self.compressor.name}"

    def for_tier(self, tier: int) -> dict[str, Any]:
        """The parameters to send to a device of ``tier``, for :func:`open_recipe` there."""
        parameters = self.method.for_tier(tier)
        if self.compressor is not None:
            own: dict[str, Any] = msgspec.to_builtins(self.compressor.parameters)
            parameters |= {f"{self.compressor.name}.{key}": value for key, value in own.items()}
        return parameters


def open_recipe(name: str, parameters: Mapping[str, Any]) -> Recipe:
    """Open a recipe by name.

    Parameters
    ----------
    name
        A method, or a method and a compressor joined by ``+``.
    parameters
        The method's by name, the compressor's with its name and a dot before them (``dgc.ratio``).

    Raises
    ------
    ConfigError
        When a part or a parameter is unknown, or makes no sense.
    """
    method, *rest = name.split("+")
    if len(rest) > 1:
        raise ConfigError(f"'{name}' names {len(rest)} compressors; a method takes one.")
    prefix = f"{rest[0]}." if rest else "."
    own = {key.removeprefix(prefix): value for key, value in parameters.items() if key.startswith(prefix)}
    others = {key: value for key, value in parameters.items() if not key.startswith(prefix)}
    compressor = open_compressor(rest[0], own) if rest else None
    return Recipe(open_method(method, others), compressor)
