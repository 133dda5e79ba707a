"""Pretrained weights into a model: a ``.safetensors`` file, or a folder as Hugging Face has it."""

import fnmatch
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from edge_fl.core.errors import ModelError
from exporter.fine_tuning import unknown_names
from exporter.sentence import some_names

__all__ = ["Loaded", "load_weights"]

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHOWN = 3  # names in an error


@dataclass(frozen=True)
class Loaded:
    """What came of a file of weights.

    Parameters
    ----------
    source
        The file, or the folder.
    found
        How many of the model's tensors it has.
    new
        The tensors that begin as they are built.
    unused
        How many of its tensors the model has not.
    renamed
        How its names differ from the model's, in words; empty where they do not.
    """

    source: Path
    found: int
    new: tuple[str, ...]
    unused: int
    renamed: str = ""

    @property
    def text(self) -> str:
        """A sentence for a person."""
        begins = f", and {len(self.new)} begin anew: {some_names(self.new, most=_SHOWN)}" if self.new else ""
        unused = f"; {self.unused} of the file are not used" if self.unused else ""
        return f"{self.found} tensors are from '{self.source}'{self.renamed}{begins}{unused}"


def load_weights(model: nn.Module, source: Path, new: Sequence[str] = ()) -> Loaded:
    """Have ``model`` start from the weights in ``source``, by name; what came of it.

    Where no name of the file is the model's, they may differ by what stands before all of them: the ``module.`` of
    DistributedDataParallel, or the ``bert.`` that a bare body of Hugging Face lacks.

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
    for pattern in new:
        if not fnmatch.filter(every, pattern):
            raise unknown_names(pattern, list(every))
    wanted = {n: tensor for n, tensor in every.items() if not any(fnmatch.fnmatchcase(n, each) for each in new)}
    counted = {name for name in wanted if name.endswith("num_batches_tracked")}
    if wanted.keys() == counted:
        raise ModelError("--new names all there is of the model: leave --weights out, or name less.")
    held = {file: _names(file) for file in _files(source)}
    names = [name for some in held.values() for name in some]
    read = _renaming(source, names, list(every))
    found: dict[str, Tensor] = {}
    for file, some in held.items():
        found |= _read(file, {name: read(name) for name in some if read(name) in wanted})
    tied = _tied_names(model, found)
    missing = sorted(wanted.keys() - found.keys() - counted - tied)
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
    anew = tuple(name for name in every if name not in wanted and name not in tied)
    unused = sum(read(name) not in wanted for name in names)
    return Loaded(source, len(found), anew, unused, read.text)


@dataclass(frozen=True)
class _Renaming:
    """The model's names of a file's: without ``dropped`` before them, and with ``added``."""

    dropped: str = ""
    added: str = ""

    def __call__(self, name: str) -> str:
        if not name.startswith(self.dropped):
            return name
        return self.added + name.removeprefix(self.dropped)

    @property
    def text(self) -> str:
        """What is done to the names, in words."""
        if self.added:
            return f", whose names lack '{self.added}'"
        return f", whose names have '{self.dropped}' before the model's" if self.dropped else ""


def _renaming(source: Path, names: Sequence[str], model: Sequence[str]) -> _Renaming:
    """How the file's ``names`` become the model's; raises ModelError where none is alike."""
    if set(model) & set(names):
        return _Renaming()
    lacking, before = _leading(model, set(names)), _leading(names, set(model))
    count = {_Renaming(added=part): often for part, often in lacking.items()}
    count |= {_Renaming(dropped=part): often for part, often in before.items()}
    best = [way for way, often in count.items() if often == max(count.values())]
    if len(best) == 1:
        return best[0]
    raise ModelError(
        f"'{source}' has no name of the model's: it has {some_names(names, most=_SHOWN) or 'none'}, and the model "
        f"{some_names(model, most=_SHOWN)}; give the file's tensors the names of the model's."
    )


def _leading(names: Sequence[str], others: set[str]) -> Counter[str]:
    """What stands before those of ``names`` that are others besides, such as ``module.``, and how often."""
    found = Counter[str]()
    for name in names:
        parts = name.split(".")
        found.update(".".join(parts[:n]) + "." for n in range(1, len(parts)) if ".".join(parts[n:]) in others)
    return found


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


def _names(file: Path) -> list[str]:
    """The tensors that ``file`` has."""
    try:
        with safe_open(file, framework="pt") as held:
            return list(held.keys())
    except (OSError, SafetensorError) as error:
        if _is_pickled(file):
            raise ModelError(
                f"'{file}' is a file of torch.save, which can hold code: save it once more with "
                f"safetensors.torch.save_file(state_dict, '{file.with_suffix('.safetensors').name}')."
            ) from error
        raise ModelError(f"The weights '{file}' cannot be read: {str(error).rstrip('.')}.") from error


def _read(file: Path, names: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of these names, by others."""
    try:
        with safe_open(file, framework="pt") as held:
            return {other: held.get_tensor(name) for name, other in names.items()}
    except (OSError, SafetensorError) as error:
        raise ModelError(f"The weights '{file}' cannot be read: {str(error).rstrip('.')}.") from error


def _is_pickled(file: Path) -> bool:
    """Whether torch.save wrote it: a zip archive, or a pickle."""
    try:
        with file.open("rb") as held:
            return held.read(2) in (b"PK", b"\x80\x02")
    except OSError:
        return False
