"""What is computed once a sample: a model cut where its first trained layer begins.

Below the cut everything is frozen. So its outputs, the features, are the same in every step and every round, and a
device makes them once and keeps them beside its samples. Steps and evaluation then take features; what lies below the
cut is read by one program alone, which makes them.
"""

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from edge_fl.core.errors import ConfigError
from edge_fl.core.inputs import Input, NamedInput, packed_input, places
from exporter.frozen_dtype import scaled_tensor, widened
from exporter.named_inputs import as_one, as_taken, dtype_of
from exporter.one_pass import one_pass
from exporter.own_outputs import flat_outputs
from exporter.source import Source, Traceable, batch_ports, frozen_ports
from exporter.trace import trace_function

__all__ = ["FEATURE_BATCH", "Below", "Cut", "Features", "above", "build_features", "find_cut"]

FEATURE_BATCH = 5
"""Samples of the example that a cut is found by; its arguments' first axis is known by it."""
_ADVICE = "leave --cache-features out"


@dataclass(frozen=True)
class Cut:
    """Where a model is cut.

    Parameters
    ----------
    module
        The name of the first trained module, or of one that it is in, whose arguments are the features.
    parts
        The tensors among these arguments, in order.
    arguments
        All arguments as :mod:`torch.utils._pytree` flattens them, :data:`_TENSOR` in the place of each tensor.
    structure
        How they are put together again.
    below
        The frozen tensors that nothing above the cut reads.
    """

    module: str
    parts: tuple[NamedInput, ...]
    arguments: tuple[Any, ...]
    structure: pytree.TreeSpec
    below: frozenset[str] = frozenset()

    @property
    def features(self) -> Input:
        """The tensors as one array."""
        return packed_input(self.parts)


def find_cut(model: nn.Module, x: Tensor, taken: Input, frozen: Collection[str]) -> Cut:
    """The cut closest to the first layer that is trained.

    Parameters
    ----------
    model
        In training mode; takes ``x``, :data:`FEATURE_BATCH` samples of ``taken``.
    frozen
        The names of its frozen tensors.

    Raises
    ------
    ConfigError
        When something is trained from the input on, or layers above read several places below.
    """
    if not frozen:
        raise ConfigError(
            f"Nothing of the model is frozen, so there are no features to keep: say with --train what is trained, or "
            f"{_ADVICE}."
        )
    first = _first_trained(model, x)
    for module in _within(first):
        cut = _cut_at(model, x, module)
        read = None if cut is None else _read_above(model, x, cut, taken)
        if cut is None or read is None:
            continue
        if below := frozenset(frozen) - read:
            return replace(cut, below=below)
        break
    else:
        if first:
            raise ConfigError(
                f"The trained layers read more of the frozen ones than what '{first}' is given, so no features can be "
                f"kept: {_ADVICE}, or train later layers alone."
            )
    raise ConfigError(f"The model trains from its input on, so there are no features to keep: {_ADVICE}.")


def _first_trained(model: nn.Module, x: Tensor) -> str:
    """The name of the module that runs first of those with trained parameters of their own."""
    order: list[str] = []
    watching = [
        module.register_forward_pre_hook(lambda _, __, name=name: order.append(name))
        for name, module in model.named_modules()
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    ]
    one_pass(model, x, watching)
    return order[0] if order else ""


def _within(name: str) -> Iterator[str]:
    """A module's name, and those of the modules that it is in."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _cut_at(model: nn.Module, x: Tensor, module: str) -> Cut | None:
    """The cut before ``module``; None where it is called more than once, or its arguments are not those of samples."""
    seen: list[tuple[Any, Any]] = []

    def note(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append((given, named))

    one_pass(model, x, [model.get_submodule(module).register_forward_pre_hook(note, with_kwargs=True)])
    if len(seen) != 1:
        return None
    leaves, structure = pytree.tree_flatten(seen[0])
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not tensors or not all(_of_samples(tensor, len(x)) for tensor in tensors):
        return None
    parts = tuple(
        NamedInput(f"feature_{i}", tuple(each.shape[1:]), dtype_of(each)) for i, each in enumerate(tensors)
    )
    arguments = tuple(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return Cut(module, parts, arguments, structure)


def _of_samples(tensor: Tensor, batch: int) -> bool:
    known = tensor.dtype in (torch.float32, torch.int64, torch.bool)
    return known and tensor.ndim > 0 and len(tensor) == batch and tensor.numel() > 0


def _read_above(model: nn.Module, x: Tensor, cut: Cut, taken: Input) -> frozenset[str] | None:
    """The tensors of the model that are read above the cut; None where the samples are, too."""
    top = above(model, cut, taken)
    entry = next(hook for hook in top._forward_pre_hooks.values() if isinstance(hook, _Enter))

    def outputs(tensors: dict[str, Tensor], features: Tensor, samples: Tensor) -> Tensor:
        entry.samples = samples
        return flat_outputs(functional_call(top, tensors, (features,)))

    features = torch.zeros(len(x), *cut.features.shape, dtype=getattr(torch, cut.features.dtype))
    read, (_, samples) = _read(top, outputs, (features, x))
    return None if samples else read


def _read(
    model: nn.Module, outputs: Callable[..., Tensor], given: tuple[Tensor, ...]
) -> tuple[frozenset[str], list[bool]]:
    """Which of the model's tensors ``outputs`` of all of them reads, and which of what it is ``given`` besides."""
    model.eval()
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        return (outputs(dict(zip(held, inputs, strict=False)), *inputs[len(held) :]),)

    traced = trace_function(function, (*(tensor.detach() for tensor in held.values()), *given), {})
    nodes = traced.graph_module.graph.find_nodes(op="placeholder")[-len(held) - len(given) :]
    read = [bool(node.users) for node in nodes]
    return frozenset(name for name, used in zip(held, read, strict=False) if used), read[len(held) :]


class _Tensor:
    """Stands among arguments for a tensor."""

    def __deepcopy__(self, _: object) -> "_Tensor":
        return self


_TENSOR = _Tensor()


@dataclass
class _Enter:
    """The hook of a whole model: features come in, and samples of zeros, of which nothing is read, go on."""

    taken: Input
    held: list[Tensor] = field(default_factory=list)
    samples: Tensor | None = None

    def __call__(self, _: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (features,) = given
        self.held[:] = [features]
        if self.samples is not None:
            samples, self.samples = self.samples, None
            return (samples,)
        shape = (features.shape[0], *self.taken.shape)
        whole = self.taken.dtype == "int64"
        kind = torch.int64 if whole else features.dtype if features.is_floating_point() else torch.float32
        return (features.new_zeros(shape, dtype=kind),)


@dataclass
class _Arrive:
    """The hook of the module at the cut: features take the place of its arguments."""

    cut: Cut
    entered: _Enter

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Arrive":
        return _Arrive(self.cut, copy.deepcopy(self.entered, memo))  # that of the same copy of the model

    def __call__(self, _: nn.Module, __: tuple[Any, ...], ___: dict[str, Any]) -> tuple[Any, Any]:
        features = self.entered.held.pop()
        at, parts = places(self.cut.parts), iter(self.cut.parts)
        leaves = [
            as_taken(features[:, at[(part := next(parts)).name]], part) if leaf is _TENSOR else leaf
            for leaf in self.cut.arguments
        ]
        given, named = pytree.tree_unflatten(leaves, self.cut.structure)
        return given, named


def above(model: nn.Module, cut: Cut, taken: Input) -> nn.Module:
    """A copy of ``model``, of samples of ``taken``, that takes the features of ``cut``: what lies below is not read."""
    top = copy.deepcopy(model)
    enter = _Enter(taken)
    top.register_forward_pre_hook(enter, prepend=True)
    top.get_submodule(cut.module).register_forward_pre_hook(_Arrive(cut, enter), with_kwargs=True, prepend=True)
    return top


class _ReachedError(Exception):
    """The forward pass has come to the cut, with these features."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


class Features(nn.Module):
    """What lies below a cut: ``[B, *input]`` to ``[B, features]``."""

    def __init__(self, model: nn.Module, cut: Cut) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval()
        dtype = getattr(torch, cut.features.dtype)

        def reached(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            tensors = [leaf for leaf in pytree.tree_leaves((given, named)) if isinstance(leaf, Tensor)]
            raise _ReachedError(as_one(tensors, dtype))

        module = self.model.get_submodule(cut.module)
        module.register_forward_pre_hook(reached, with_kwargs=True, prepend=True)

    def forward(self, x: Tensor) -> Tensor:
        """Run the model up to the cut."""
        try:
            self.model(x)
        except _ReachedError as error:
            return error.features
        raise AssertionError("the forward pass comes to the cut")


@dataclass(frozen=True)
class Below:
    """What programs of features are held to: the user's own model up to the cut, in double precision."""

    whole: Source
    cut: Cut

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """The features of samples ``[n, *input]``; those of a mask, such as the least number, as float32 has them."""
        below, given = Features(self.whole.original, self.cut).double(), torch.from_numpy(x)
        with torch.no_grad():
            found: NDArray[Any] = below(given.double() if given.is_floating_point() else given).numpy()
        single = np.finfo(np.float32)
        clipped: NDArray[Any] = np.clip(found, single.min, single.max)
        return clipped


def build_features(source: Source, cut: Cut) -> Traceable:
    """Build ``(frozen..., x [B, *input]) -> features [B, F]``, of the frozen tensors below the cut alone."""
    x, *_ = batch_ports(source)
    below = Features(source.module, cut)
    frozen = {port.name.partition(".")[2]: port for port in frozen_ports(source)}
    read, _ = _read(
        below, lambda tensors, x: functional_call(below, tensors, (x,)), (x.example({}, FEATURE_BATCH),)
    )
    names = [name for name in frozen if f"model.{scaled_tensor(name)}" in read]

    def features(*inputs: Tensor) -> tuple[Tensor, ...]:
        *tensors, x = inputs
        held = {f"model.{name}": tensor for name, tensor in zip(names, tensors, strict=True)}
        return (functional_call(below, widened(held), (x,)),)

    return Traceable(source, "features", features, (*(frozen[name] for name in names), x), ("features",))
