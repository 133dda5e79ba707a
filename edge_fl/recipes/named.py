"""Methods and compressors for Python: ``FedBIAD(dropout=0.5) + DGC(ratio=0.001)``.

Parameters are those of ``--set``; rates and widths are shares such as 0.5, one or one a tier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_fl.core.errors import ConfigError
from edge_fl.core.share import parse_width, thousandths
from edge_fl.recipes.own import plain_recipe
from edge_fl.recipes.presets import expanded

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
    "Fractional",
    "HeteroFL",
    "NamedRecipe",
    "RandK",
    "SignSGD",
    "TopK",
    "VarDrop",
    "recipe_and_parameters",
]


@dataclass(frozen=True)
class NamedRecipe:
    """A method or a compressor by name, with parameters; ``+`` puts a compressor on a method."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __add__(self, compressor: "NamedRecipe") -> "NamedRecipe":
        """The method with ``compressor`` on top."""
        theirs = {f"{compressor.name}.{key}": value for key, value in compressor.parameters.items()}
        return NamedRecipe(f"{self.name}+{compressor.name}", {**self.parameters, **theirs})


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
    if isinstance(method, str):
        plain, code = plain_recipe(method)
        return *expanded(plain, parameters), code
    if not isinstance(method, NamedRecipe):
        raise ConfigError(
            f"A method is a name such as 'fedbiad', or edge_fl.FedBIAD(dropout=0.5), not {method!r}."
        )
    plain, code = plain_recipe(method.name)
    return *expanded(plain, {**method.parameters, **parameters}), code


class _Method:
    """Makes recipes of one method or compressor."""

    def __init__(self, name: str, shares: Sequence[str] = ()) -> None:
        self._name, self._shares = name, shares

    def __call__(self, **parameters: Any) -> NamedRecipe:
        """The recipe with ``parameters``; raises ConfigError on a share outside its range."""
        return NamedRecipe(self._name, {key: self._given(key, value) for key, value in parameters.items()})

    def _given(self, key: str, value: Any) -> Any:
        if key not in self._shares:
            return list(value) if isinstance(value, tuple) else value
        read = thousandths if key == "dropout" else parse_width
        given = [read(share) for share in (value if isinstance(value, list | tuple) else [value])]
        return given if key in ("dropout", "widths") else given[0]


FedAvg = _Method("fedavg")
FedBIAD = _Method("fedbiad", ["dropout"])
FedDrop = _Method("feddrop", ["dropout"])
AFD = _Method("afd", ["dropout"])
FedMP = _Method("fedmp", ["dropout"])
HeteroFL = _Method("heterofl")
VarDrop = _Method("vardrop")
EFD = _Method("efd", ["width", "widths"])
TopK, RandK, STC, DGC = _Method("topk"), _Method("randk"), _Method("stc"), _Method("dgc")
FedPAQ, SignSGD, Fractional, TCS = _Method("fedpaq"), _Method("signsgd"), _Method("fractional"), _Method("tcs")


def FjORD(*, distil: bool = False, **parameters: Any) -> NamedRecipe:  # noqa: N802  (its name in the field)
    """Ordered dropout (Horvath et al., 2021); with ``distil`` the widest sub-model teaches the one drawn."""
    return _Method("fjord+kd" if distil else "fjord", ["widths"])(**parameters)
