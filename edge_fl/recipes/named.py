"""Methods and compressors for Python: ``FedBIAD(dropout=0.5) + DGC(ratio=0.001) + ServerMomentum(0.9)``.

Parameters are those of ``--set``; rates and widths are shares such as 0.5, one or one a tier.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any, Protocol

from edge_fl.compressors.base import COMPRESSORS, Compressor, compressor_names
from edge_fl.core.errors import ConfigError
from edge_fl.core.spelling import meant
from edge_fl.methods.base import METHODS, Method, method_names
from edge_fl.recipes.own import plain_recipe
from edge_fl.recipes.presets import expanded
from edge_fl.recipes.recipe import shares_in_thousandths
from edge_fl.recipes.server_momentum import SERVER
from edge_fl.recipes.signatures import defaults, described

__all__ = [
    "AFD",
    "DGC",
    "EFD",
    "STC",
    "TCS",
    "FedAvg",
    "FedBIAD",
    "FedDrop",
    "FedMP",
    "FedPAQ",
    "FjORD",
    "FlexLoRA",
    "Fractional",
    "HetLoRA",
    "HeteroFL",
    "NamedRecipe",
    "RandK",
    "ServerMomentum",
    "SignSGD",
    "TopK",
    "VarDrop",
    "recipe_and_parameters",
]


_NO_METHOD = "ServerMomentum is no method: add it to one, as in edge_fl.FedAvg() + edge_fl.ServerMomentum(0.9)."


@dataclass(frozen=True)
class NamedRecipe:
    """A method or a compressor by name, with parameters; ``+`` puts a compressor, or momentum, on a method.

    A compressor alone goes on FedAvg.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __add__(self, other: "NamedRecipe") -> "NamedRecipe":
        """The method with ``other`` on top; raises ConfigError where one of the two cannot stand there."""
        if not isinstance(other, NamedRecipe):
            return NotImplemented
        if self.name == SERVER:
            raise ConfigError(_NO_METHOD)
        if other.name in method_names():
            raise ConfigError(f"'{other.name}' is a method: add a compressor, or edge_fl.ServerMomentum, to one.")
        if other.name == SERVER and any(key.startswith(f"{SERVER}.") for key in self.parameters):
            raise ConfigError("The method has momentum on the server already: add ServerMomentum once.")
        theirs = {f"{other.name}.{key}": value for key, value in other.parameters.items()}
        name = self.name if other.name == SERVER else f"{self.name}+{other.name}"
        return NamedRecipe(name, {**self.parameters, **theirs})


def recipe_and_parameters(
    method: "str | NamedRecipe", parameters: Mapping[str, Any]
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """What a run's config keeps of ``method``, with ``parameters`` beside its own; presets are expanded.

    Returns
    -------
    Plain names, parameters, and the specs of the user's own code.

    Raises
    ------
    ConfigError
        When ``method`` is neither a name nor one of this module's.
    """
    given: object = NamedRecipe(method) if isinstance(method, str) else method
    if not isinstance(given, NamedRecipe):
        raise ConfigError(
            f"A method is a name such as 'fedbiad', or edge_fl.FedBIAD(dropout=0.5), not {_shown(given)}."
        )
    if given.name == SERVER:
        raise ConfigError(_NO_METHOD)
    plain, code = plain_recipe(given.name)
    own = given.parameters
    if plain in compressor_names():  # alone, on FedAvg
        own = {key if "." in key else f"{plain}.{key}": value for key, value in own.items()}
    name, found = expanded(plain, {**own, **parameters})
    return name, shares_in_thousandths(name, found), code


def _shown(given: object) -> str:
    """What was given in place of a method, and what to do with one of this module's."""
    python = getattr(given, "__name__", "")
    if getattr(given, "__module__", "") != __name__ or python not in __all__:
        return str(given)
    if python == ServerMomentum.__name__:
        raise ConfigError(_NO_METHOD)
    return f"edge_fl.{python}; call edge_fl.{python}()"


class _Makes(Protocol):
    """Makes recipes of one method or compressor."""

    def __call__(self, **parameters: Any) -> NamedRecipe: ...


def _method(python: str) -> _Makes:
    """What makes recipes of one of our methods, and is called ``edge_fl.PYTHON``."""
    return _maker(python, METHODS.ours(python.lower()))


def _compressor(python: str) -> _Makes:
    """The same of a compressor, which goes on a method, or alone on FedAvg."""
    return _maker(python, COMPRESSORS.ours(python.lower()))


def _maker(python: str, kind: type[Method] | type[Compressor]) -> _Makes:
    known = defaults(kind)

    def make(**parameters: Any) -> NamedRecipe:
        _refuse_unknown(python, parameters, known)
        return NamedRecipe(kind.name, parameters)

    make.__name__ = make.__qualname__ = python
    make.__doc__ = described(kind)
    make.__signature__ = _signature(known)  # type: ignore[attr-defined]  # inspect and help() read it
    return make


def _refuse_unknown(python: str, parameters: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = next((key for key in parameters if key not in known and "." not in key), None)
    if unknown is not None:
        raise ConfigError(f"edge_fl.{python} takes {', '.join(known)}, and no '{unknown}'.{meant(unknown, known)}")


def _signature(known: Mapping[str, Any]) -> Signature:
    """Of a function that takes these parameters, with their defaults, and gives a recipe."""
    return Signature(
        [Parameter(key, Parameter.KEYWORD_ONLY, default=value) for key, value in known.items()],
        return_annotation=NamedRecipe,
    )


FedAvg = _method("FedAvg")
FedBIAD = _method("FedBIAD")
FedDrop = _method("FedDrop")
AFD = _method("AFD")
FedMP = _method("FedMP")
HeteroFL = _method("HeteroFL")
HetLoRA, FlexLoRA = _method("HetLoRA"), _method("FlexLoRA")
VarDrop = _method("VarDrop")
EFD = _method("EFD")
TopK, RandK, STC, DGC = _compressor("TopK"), _compressor("RandK"), _compressor("STC"), _compressor("DGC")
FedPAQ, SignSGD = _compressor("FedPAQ"), _compressor("SignSGD")
Fractional, TCS = _compressor("Fractional"), _compressor("TCS")


_ORDERED = defaults(METHODS.ours("fjord"))
_DISTILLED = {"distil": False, **defaults(METHODS.ours("fjord+kd"))}


def FjORD(*, distil: bool = False, **parameters: Any) -> NamedRecipe:  # noqa: N802  (its name in the field)
    """Ordered dropout (Horvath et al., 2021); with ``distil`` the widest sub-model teaches the one drawn.

    Parameters
    ----------
    distil
        Distil knowledge, as method ``fjord+kd``.
    **parameters
        ``widths``, one a tier; with ``distil`` also ``alpha``, ``temperature`` and ``direction``.
    """
    _refuse_unknown("FjORD", parameters, _DISTILLED)
    if not distil and (of_distilling := parameters.keys() & _DISTILLED.keys() - _ORDERED.keys()):
        raise ConfigError(
            f"'{min(of_distilling)}' is of knowledge distillation: give edge_fl.FjORD distil=True, too."
        )
    return NamedRecipe("fjord+kd" if distil else "fjord", parameters)


FjORD.__signature__ = _signature(_DISTILLED)  # type: ignore[attr-defined]  # as of the other methods


def ServerMomentum(momentum: float) -> NamedRecipe:  # noqa: N802  (beside the methods, which have names of the field)
    """Momentum on the server (FedAvgM: Hsu, Qi and Brown, 2019), to add to a method; ``momentum`` is in [0, 1)."""
    return NamedRecipe(SERVER, {"momentum": momentum})
