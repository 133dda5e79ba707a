"""Pretrained weights into a model: a ``.safetensors`` file, or a folder as Hugging Face has it."""

import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from edge_fl.core.errors import ModelError
from exporter.sentence import some_names

__all__ = ["load_weights"]

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHOWN = 3  # names in an error


def load_weights(model: nn.Module, source: Path, new: Sequence[str] = ()) -> None:
    """Have ``model`` start from the weights in ``source``, by name.

    Parameters
    ----------
    source
        A ``.safetensors`` file, or a folder with ``model.safetensors`` or its parts and their index. Half precision
        becomes float32.
    new
        Patterns of parameters that stay as they are, such as ``head.*`` of a new head.

    Raises
    ------
    ModelError
        When it cannot be read, lacks one of the model's parameters, or has one of another shape; or when a pattern
        names nothing. The model is left as it is then.
    """
    every = model.state_dict()
    if unknown := [pattern for pattern in new if not fnmatch.filter(every, pattern)]:
        raise ModelError(
            f"No parameter is called '{unknown[0]}', which was to begin anew: see named_parameters()."
        )
    wanted = {n: tensor for n, tensor in every.items() if not any(fnmatch.fnmatchcase(n, each) for each in new)}
    found: dict[str, Tensor] = {}
    for file in _files(source):
        found.update(_read(file, wanted))
    counted = {name for name in wanted if name.endswith("num_batches_tracked")}
    missing = sorted(wanted.keys() - found.keys() - counted - _tied_names(model, found))
    if missing:
        raise ModelError(
            f"'{source}' lacks {some_names(missing, most=_SHOWN)} of the model: build the model as its weights were "
            f"trained, or have new layers begin as they are built, as in --new '{_layer(missing[0])}'."
        )
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape:
            raise ModelError(
                f"'{name}' has the shape {tuple(tensor.shape)} in '{source}' and {tuple(wanted[name].shape)} in the "
                f"model: build the model as its weights were trained, or give --new '{_layer(name)}' for a new layer."
            )
    with torch.no_grad():
        for name, tensor in found.items():
            wanted[name].copy_(tensor)


def _layer(name: str) -> str:
    """A pattern of all parameters beside ``name``."""
    module = name.rpartition(".")[0]
    return f"{module}.*" if module else name


def _tied_names(model: nn.Module, found: dict[str, Tensor]) -> set[str]:
    """All names of the parameters that are there: of a tied one a file has one name."""
    every = list(model.named_parameters(remove_duplicate=False))
    held = {id(parameter) for name, parameter in every if name in found}
    return {name for name, parameter in every if id(parameter) in held}


def _files(source: Path) -> Sequence[Path]:
    if not source.is_dir():
        return [source]
    if (source / _ONE).is_file():
        return [source / _ONE]
    try:
        index = json.loads((source / _INDEX).read_text())
        names = sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"'{source}' holds neither '{_ONE}' nor a readable '{_INDEX}'.") from error
    for name in names:
        if Path(str(name)).name != name:
            raise ModelError(f"'{source / _INDEX}' names '{name}', which is no file of that folder.")
    return [source / name for name in names]


def _read(file: Path, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the model that ``file`` has; others are passed over."""
    try:
        with safe_open(file, framework="pt") as held:
            return {name: held.get_tensor(name) for name in held.keys() if name in wanted}  # noqa: SIM118  # no dict
    except (OSError, SafetensorError) as error:
        raise ModelError(f"The weights '{file}' cannot be read: {str(error).rstrip('.')}.") from error
