"""Methods and compressors for Python: ``FedBIAD(dropout=0.5) + DGC(ratio=0.001) + ServerMomentum(0.9)``.

Parameters are those of ``--set``; rates and widths are shares such as 0.5, one or one a tier.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any

from edge_fl.core.errors import ConfigError
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
    """A method or a compressor by name, with parameters; ``+`` puts a compressor, or momentum, on a method."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __add__(self, other: "NamedRecipe") -> "NamedRecipe":
        """The method with ``other`` on top; raises ConfigError when this is no method, or has momentum already."""
        if not isinstance(other, NamedRecipe):
            return NotImplemented
        if self.name == SERVER:
            raise ConfigError(_NO_METHOD)
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
        ours = f"edge_fl.{given.__name__}" if getattr(given, "__module__", "") == __name__ else ""  # type: ignore[attr-defined]
        shown = f"{ours}; call {ours}()" if ours else given
        raise ConfigError(f"A method is a name such as 'fedbiad', or edge_fl.FedBIAD(dropout=0.5), not {shown}.")
    if given.name == SERVER:
        raise ConfigError(_NO_METHOD)
    plain, code = plain_recipe(given.name)
    name, found = expanded(plain, {**given.parameters, **parameters})
    return name, shares_in_thousandths(name, found), code


def _makes(python: str) -> Callable[..., NamedRecipe]:
    """What makes recipes of one method or compressor, and is called ``edge_fl.PYTHON``."""
    name = python.lower()

    def make(**parameters: Any) -> NamedRecipe:
        return NamedRecipe(name, parameters)

    make.__name__ = make.__qualname__ = python
    make.__doc__ = described(name)
    make.__signature__ = Signature(  # type: ignore[attr-defined]  # inspect and help() read it
        [Parameter(key, Parameter.KEYWORD_ONLY, default=value) for key, value in defaults(name).items()]
    )
    return make


FedAvg = _makes("FedAvg")
FedBIAD = _makes("FedBIAD")
FedDrop = _makes("FedDrop")
AFD = _makes("AFD")
FedMP = _makes("FedMP")
HeteroFL = _makes("HeteroFL")
HetLoRA, FlexLoRA = _makes("HetLoRA"), _makes("FlexLoRA")
VarDrop = _makes("VarDrop")
EFD = _makes("EFD")
TopK, RandK, STC, DGC = _makes("TopK"), _makes("RandK"), _makes("STC"), _makes("DGC")
FedPAQ, SignSGD, Fractional, TCS = _makes("FedPAQ"), _makes("SignSGD"), _makes("Fractional"), _makes("TCS")


def FjORD(*, distil: bool = False, **parameters: Any) -> NamedRecipe:  # noqa: N802  (its name in the field)
    """Ordered dropout (Horvath et al., 2021); with ``distil`` the widest sub-model teaches the one drawn.

    Parameters
    ----------
    distil
        Distil knowledge, as method ``fjord+kd``.
    **parameters
        ``widths``, one a tier; with ``distil`` also ``alpha``, ``temperature`` and ``direction``.
    """
    return NamedRecipe("fjord+kd" if distil else "fjord", parameters)


def ServerMomentum(momentum: float) -> NamedRecipe:  # noqa: N802  (beside the methods, which have names of the field)
    """Momentum on the server (FedAvgM: Hsu, Qi and Brown, 2019), to add to a method; ``momentum`` is in [0, 1)."""
    return NamedRecipe(SERVER, {"momentum": momentum})
