"""Which part of a model is trained: ``head.*``, ``bias``, ``norm``, or adapters, ``lora:q_proj,v_proj:r=8``."""

import copy
import difflib
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from edge_fl.core.errors import ConfigError, ModelError
from exporter.lora import adapt_layer, most_ranks
from exporter.sentence import some_names

__all__ = ["KINDS", "NORM", "named_parameters", "train_only", "unknown_names"]

BIAS, NORM = "bias", "norm"
KINDS = (BIAS, NORM)
"""Choices that say a kind of parameter, and no names."""

_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
)
_SHOWN = 8  # names in an error
_NUMBER = re.compile(r"(r|alpha)=(\d+(?:\.\d+)?)")


def train_only(model: nn.Module, choices: Sequence[str]) -> nn.Module:
    """A copy of ``model`` of which only what ``choices`` name is trained; the model itself where there are none.

    Parameters
    ----------
    choices
        Each adds to what is trained: a pattern of parameter names as in a shell (``head.*``); ``bias``, all biases
        (``in_proj_bias``, too); ``norm``, those of normalisation layers; or ``lora:NAMES:r=R[:alpha=A]``, adapters of
        rank R beside the layers whose names end with one of NAMES, and beside those of R ranks or more that match
        one as a pattern. Alpha is 2 R by default.

    Raises
    ------
    ConfigError
        When a choice makes no sense.
    ModelError
        When one names nothing in the model, or a layer that has no adapter or fewer ranks.
    """
    if not choices:
        return model
    chosen = copy.deepcopy(model)
    adapters = [_parse_lora(choice) for choice in choices if choice.startswith("lora:")]
    names = {
        name for choice in choices if not choice.startswith("lora:") for name in named_parameters(chosen, choice)
    }
    for name, parameter in chosen.named_parameters():
        parameter.requires_grad_(name in names)
    for adapter in adapters:
        _insert(chosen, adapter)
    return chosen


@dataclass(frozen=True)
class _Lora:
    """Adapters of ``rank`` beside the layers that ``names`` say."""

    choice: str
    names: tuple[str, ...]
    rank: int
    alpha: float


def _is_named(layer: str, name: str) -> bool:
    return layer == name or layer.endswith(f".{name}")


def _parse_lora(choice: str) -> _Lora:
    _, listed, *numbers = choice.split(":")
    names = tuple(filter(None, listed.split(",")))
    found = {match[1]: match[2] for number in numbers if (match := _NUMBER.fullmatch(number))}
    rank = found.get("r", "")
    if rank.isdigit() and int(rank) < 1:
        raise ConfigError(f"'{choice}' asks for adapters of rank {rank}: take 1 or more.")
    if not names or len(found) != len(numbers) or not rank.isdigit():
        raise ConfigError(
            f"'{choice}' names no adapters: write lora:LAYERS:r=RANK, such as lora:q_proj,v_proj:r=8 or "
            "lora:fc1:r=4:alpha=16."
        )
    alpha = float(found.get("alpha", 2 * int(rank)))
    if not alpha > 0:
        raise ConfigError(f"'{choice}' has an alpha of {alpha:g}: take one above 0.")
    return _Lora(choice, names, int(rank), alpha)


def named_parameters(model: nn.Module, choice: str) -> set[str]:
    """The parameters that ``bias``, ``norm`` or a pattern of names says; raises ModelError where it says none."""
    every = [name for name, _ in model.named_parameters()]
    if choice == NORM:
        paths = [path for path, module in model.named_modules() if isinstance(module, _NORMS)]
        found = {name for name in every if name.rpartition(".")[0] in paths}
    elif choice == BIAS:
        found = {name for name in every if _is_bias(name.rpartition(".")[2])}
    else:
        found = set(fnmatch.filter(every, choice))
    if not found:
        raise unknown_names(choice, every)
    return found


def _is_bias(name: str) -> bool:
    return name.startswith(f"{BIAS}_") or f"_{name}".endswith(f"_{BIAS}")  # bias_hh_l0, in_proj_bias


def unknown_names(choice: str, names: Sequence[str]) -> ModelError:
    """That a pattern names none of a model's parameters, and what may be meant."""
    parts = dict.fromkeys(f"{name.partition('.')[0]}.*" if "." in name else name for name in names)
    shown = list(parts if 1 < len(parts) <= _SHOWN < len(names) else names)
    return ModelError(
        f"'{choice}' names no parameter of the model, which has {some_names(shown, most=_SHOWN)}"
        f"{_meant(choice, names)}."
    )


def _meant(choice: str, names: Sequence[str]) -> str:
    """What may be meant where nothing has that name: all below it, or a name that is spelt alike."""
    modules = sorted({name.rpartition(".")[0] for name in names} - {""})
    if any(name.startswith(f"{choice}.") for name in names):
        return f": did you mean '{choice}.*'"
    alike = difflib.get_close_matches(choice.removesuffix(".*"), [*modules, *names], n=1)
    if not alike:
        return ""
    return f": did you mean '{alike[0]}.*'" if alike[0] in modules else f": did you mean '{alike[0]}'"


def _insert(model: nn.Module, adapter: _Lora) -> None:
    """Patterns pass over layers that have no adapter, or none of the rank; a layer that is named must have one."""
    layers = {path: module for path, module in model.named_modules() if path}
    fitting = [path for path, module in layers.items() if most_ranks(module)]
    wanted = set[str]()
    for name in adapter.names:
        named = [path for path in layers if _is_named(path, name)]
        matched = fnmatch.filter(fitting, name)
        wide = [path for path in matched if most_ranks(layers[path]) >= adapter.rank]
        if not named and not matched:
            raise _no_layer(name, adapter.choice, fitting)
        wanted.update(named, wide or matched)
    for path in [path for path in layers if path in wanted]:
        parent, _, last = path.rpartition(".")
        made = adapt_layer(path, layers[path], rank=adapter.rank, alpha=adapter.alpha)
        setattr(model.get_submodule(parent), last, made)


def _no_layer(name: str, choice: str, fitting: Sequence[str]) -> ModelError:
    """That one of an adapter's names is no layer's, and which there are: by last parts, where these are words."""
    if not fitting:
        return ModelError(f"'{choice}' wants adapters, and no layer of the model takes any.")
    last = dict.fromkeys(path.rpartition(".")[2] for path in fitting)
    shown = list(fitting if any(part.isdigit() for part in last) else last)
    return ModelError(
        f"'{name}' in '{choice}' names no layer of the model, which has {some_names(shown, most=2 * _SHOWN)}"
        f"{_meant(name, sorted(last))}."
    )
