"""A method, perhaps a compressor on top of it, and momentum on the server: what ``fedbiad+dgc`` names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from edge_fl.aggregation.rules import Rule, find_rule
from edge_fl.compressors.base import (
    COMPRESSORS,
    ChoosesRule,
    Compressor,
    SendsChanges,
    Shares,
    compressor_names,
    open_compressor,
)
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.parameters import opened
from edge_fl.core.selection import Weights
from edge_fl.core.server_half import Change, PrunesModel, State, Stateful, UpdatesModel
from edge_fl.core.share import in_thousandths
from edge_fl.core.spelling import meant
from edge_fl.methods.base import METHODS, Method, method_names, open_method
from edge_fl.methods.capabilities import (
    ClientReport,
    DrawsWithoutData,
    LearnsFromReports,
    ReordersUnits,
    SendsEntries,
)
from edge_fl.recipes.presets import PRESETS
from edge_fl.recipes.server_momentum import SERVER, ServerMomentum, ServerParameters
from edge_fl.wire.context import Decoder
from edge_fl.wire.sparse import SPARSE
from edge_fl.wire.values import FLOAT32

__all__ = ["Recipe", "open_recipe", "parts_of", "shares_in_thousandths"]

_SERVER = f"{SERVER}."


@dataclass(frozen=True)
class Recipe:
    """What clients train with, how their updates are encoded, and what the server makes of a round's change."""

    method: Method
    compressor: Compressor | None = None
    server: ServerMomentum | None = None

    @property
    def name(self) -> str:
        """``method`` or ``method+compressor``, as :func:`open_recipe` reads it."""
        return self.method.name if self.compressor is None else f"{self.method.name}+{self.compressor.name}"

    @property
    def rule(self) -> Rule:
        """The aggregation rule; raises ConfigError when there is none of the name that the parts give."""
        method, compressor = self.method, self.compressor
        if compressor is not None and isinstance(compressor, ChoosesRule) and compressor.rule is not None:
            return find_rule(compressor.rule, compressor.weighting)
        return find_rule(method.rule, method.weighting)

    @property
    def decoders(self) -> dict[str, Decoder]:
        """What reads its updates' values, where they are compressed."""
        return {} if self.compressor is None else {self.compressor.name: self.compressor.decompress}

    @property
    def values(self) -> str:
        """How its updates' values are encoded, as their header says it."""
        if self.compressor is not None:
            return self.compressor.name
        return SPARSE if self.sends_entries else FLOAT32

    @property
    def sends_entries(self) -> bool:
        """Whether updates leave out entries that their pattern keeps, and say which."""
        return isinstance(self.method, SendsEntries)

    @property
    def sends_changes(self) -> bool:
        """Whether devices that hold an earlier model can be sent compressed changes in place of the whole."""
        compressor = self.compressor
        return compressor is not None and isinstance(compressor, SendsChanges) and compressor.sends_changes

    @property
    def shares(self) -> bool:
        """Whether every device is told something with each round's model."""
        return isinstance(self.compressor, Shares)

    def shared(self) -> bytes:
        """What goes to every device with the model of the coming round, for the compressor; empty for nothing."""
        return self.compressor.shared() if isinstance(self.compressor, Shares) else b""

    def server_update(self, round: int, change: Change) -> Change:
        """What the model is given in place of ``change``: the method's word first, the server's momentum last."""
        for _, part in self._parts():
            if isinstance(part, UpdatesModel):
                change = part.server_update(round, change)
        return change

    def learn(self, round: int, reports: Sequence[ClientReport]) -> None:
        """Have the method take note of a closed round's updates."""
        if isinstance(self.method, LearnsFromReports):
            self.method.learn(round, reports)

    def final_weights(self, weights: Weights) -> Weights:
        """What a run that ended now would give of the model ``weights``."""
        return self.method.final_weights(weights) if isinstance(self.method, PrunesModel) else weights

    @property
    def draws_without_data(self) -> bool:
        """Whether which units and entries a device sends tells nothing of its data."""
        return self.compressor is None and not self.sends_entries and isinstance(self.method, DrawsWithoutData)

    def state_dict(self) -> State:
        """What all parts have learned on the server."""
        return {
            f"{prefix}{name}": held
            for prefix, part in self._parts()
            if isinstance(part, Stateful)
            for name, held in part.state_dict().items()
        }

    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Go on from what :meth:`state_dict` gave."""
        for prefix, part in self._parts():
            own = {key.removeprefix(prefix): held for key, held in learned.items() if key.startswith(prefix)}
            if isinstance(part, Stateful):
                part.load_state_dict(layout, own)

    def _parts(self) -> tuple[tuple[str, object], ...]:
        parts = (("method.", self.method), ("compressor.", self.compressor), (_SERVER, self.server))
        return tuple((prefix, part) for prefix, part in parts if part is not None)

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters, defaults too, as :func:`open_recipe` takes them; the server's where it has any."""
        found: dict[str, Any] = msgspec.to_builtins(self.method.parameters)
        if self.compressor is not None:
            own: dict[str, Any] = msgspec.to_builtins(self.compressor.parameters)
            found |= {f"{self.compressor.name}.{key}": value for key, value in own.items()}
        if self.server is not None:
            found |= {f"{_SERVER}{key}": v for key, v in msgspec.to_builtins(self.server.parameters).items()}
        return found


def open_recipe(name: str, parameters: Mapping[str, Any]) -> Recipe:
    """Open a recipe by name.

    Parameters
    ----------
    name
        A method, or a method and a compressor joined by ``+``; a method's own name may hold a ``+`` (``fjord+kd``). A
        compressor alone goes with ``fedavg``.
    parameters
        The method's by name, the compressor's with its name and a dot before them (``dgc.ratio``), and those of the
        server: ``server.momentum``.

    Raises
    ------
    ConfigError
        When a part or a parameter is unknown, or makes no sense, or the method takes no compressor, or no momentum.
    """
    method, compressor, own = parts_of(name, parameters)
    recipe = Recipe(
        open_method(method, own.method),
        open_compressor(compressor, own.compressor) if compressor else None,
        _open_server(own.server),
    )
    if recipe.server is not None and isinstance(recipe.method, ReordersUnits):
        raise ConfigError(
            f"'{method}' divides adapters anew each round, so that momentum on them is none of the model's: leave "
            "server.momentum out."
        )
    if compressor and recipe.sends_entries:
        raise ConfigError(
            f"'{method}' tells the server which entries it sends, and '{compressor}' could not: leave it out."
        )
    if find_rule(recipe.method.rule).products and not recipe.rule.products:
        raise ConfigError(
            f"'{method}' averages products of adapters, and '{compressor}' has a rule of its own: leave it out, or its "
            "parameter that chooses the rule."
        )
    if recipe.compressor is not None and recipe.compressor.memory and isinstance(recipe.method, ReordersUnits):
        raise ConfigError(
            f"'{method}' divides adapters anew each round, and '{compressor}' remembers what it did not send of each "
            "rank: choose a compressor without a memory, such as fedpaq."
        )
    return recipe


def shares_in_thousandths(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's parameters as a person gives them, with shares such as 0.5, as :func:`open_recipe` takes them.

    Raises ConfigError as that does for names, and for what is no share.
    """
    method, compressor, own = parts_of(name, parameters)
    found = in_thousandths(METHODS.find(method).Parameters, own.method, f"method '{method}'")
    if compressor:
        theirs = in_thousandths(
            COMPRESSORS.find(compressor).Parameters, own.compressor, f"compressor '{compressor}'"
        )
        found |= {f"{compressor}.{key}": value for key, value in theirs.items()}
    return found | {f"{_SERVER}{key}": value for key, value in own.server.items()}


class _Own(NamedTuple):
    """The parameters of each part, by its own names."""

    method: dict[str, Any]
    compressor: dict[str, Any]
    server: dict[str, Any]


def _open_server(parameters: Mapping[str, Any]) -> ServerMomentum | None:
    """None where there is no momentum to remember."""
    found = opened(ServerParameters, parameters, "server")
    return ServerMomentum(found) if found.momentum else None


def parts_of(name: str, parameters: Mapping[str, Any]) -> tuple[str, str, _Own]:
    """The method and the compressor (or nothing) of a recipe, and the parameters of each."""
    if ":" in name or "/" in name:
        raise ConfigError(f"'{name[:80]}' is no plain name of a method: no code comes with a task.")
    method, rest = _divided(f"fedavg+{name}" if name in compressor_names() else name)
    if method in PRESETS and any(rest):
        raise ConfigError(f"'{method}' is a preset with a compressor already: leave '+{'+'.join(rest)}' out.")
    if len(rest) > 1:
        raise ConfigError(f"'{name}' names {len(rest)} compressors; a method takes one.")
    if method not in method_names():
        ours = f"{', '.join(method_names())}, the compressors {', '.join(compressor_names())}, and {', '.join(PRESETS)}"
        raise ConfigError(
            f"There is no method '{method}': give one of yours with '--method FILE.py:CLASS', on devices, too, or one "
            f"of {ours}.{meant(method, (*method_names(), *compressor_names(), *PRESETS))}"
        )
    compressor = rest[0] if rest else ""
    own = _Own({}, {}, {})
    for key, value in parameters.items():
        part, dot, last = key.partition(".")
        if dot and compressor and part == compressor:
            own.compressor[last] = value
        elif key.startswith(_SERVER):
            own.server[last] = value
        elif dot and part in compressor_names() and compressor in ("", *compressor_names()):
            raise ConfigError(
                f"'{key}' is of the compressor '{part}', and the method has {compressor or 'no compressor'}."
            )
        else:
            own.method[key] = value
    _check_whose(method, compressor, own)
    return method, compressor, own


def _check_whose(method: str, compressor: str, own: _Own) -> None:
    """Raise ConfigError for a compressor's parameter without its name in front."""
    if not compressor:
        return
    methods, theirs = METHODS.find(method).Parameters, COMPRESSORS.find(compressor).Parameters
    for key in own.method:
        if key not in methods.__struct_fields__ and key in theirs.__struct_fields__:
            raise ConfigError(f"'{key}' is of the compressor '{compressor}': write '{compressor}.{key}'.")


def _divided(name: str) -> tuple[str, list[str]]:
    """The longest method that ``name`` begins with (its first part where none fits), and the parts that are left."""
    parts, known = name.split("+"), method_names()
    length = next((n for n in range(len(parts), 0, -1) if "+".join(parts[:n]) in known), 1)
    return "+".join(parts[:length]), parts[length:]
