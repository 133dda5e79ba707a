"""What each device trains and keeps to itself: ``head.*``, ``bias`` or ``norm``, as what is trained is named."""

from collections.abc import Collection, Iterable, Sequence

import msgspec
from torch import nn

from edge_fl.core.errors import ConfigError, UnsupportedModelError
from edge_fl.core.layout import Layout, Tensor
from exporter.fine_tuning import KINDS, NORM, named_parameters
from exporter.frozen import BATCH_NORMS, STATISTICS
from exporter.module_names import within

__all__ = ["personal_names", "set_apart"]


def personal_names(model: nn.Module, choices: Sequence[str]) -> frozenset[str]:
    """The names of the parameters that ``choices`` say, and of the statistics of a BatchNorm that has no others.

    ``bias`` and ``norm`` say what is trained of that kind; ``norm`` says a BatchNorm without parameters, too.

    Raises
    ------
    ModelError
        When a choice names nothing in the model.
    ConfigError
        When it names a frozen parameter, or all choices leave nothing that devices share.
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    names = set[str]()
    for choice in choices:
        named = named_parameters(model, choice)
        own = named & trained if choice in KINDS else named
        if odd := sorted(own - trained) or (not own and sorted(named)):
            raise ConfigError(
                f"'{odd[0]}' is frozen, so no device has its own: train it, or name others as personal."
            )
        names |= own
    if names and names == trained:
        raise ConfigError("Every trained parameter is personal, so devices share nothing: name fewer of them.")
    for path, module in model.named_modules():
        parameters = {within(path, name) for name, _ in module.named_parameters(recurse=False)}
        whole = parameters <= names if parameters else NORM in choices
        if isinstance(module, BATCH_NORMS) and whole:
            names |= {within(path, statistic) for statistic in STATISTICS}
    return frozenset(names)


def set_apart(layout: Layout, names: Collection[str]) -> Layout:
    """``layout`` with the tensors of these ``names`` among its personal ones.

    Raises UnsupportedModelError when that leaves a block without rows in what is shared.
    """
    shared = tuple(tensor for tensor in layout.tensors if tensor.name not in names)
    personal = tuple(tensor for tensor in layout.tensors if tensor.name in names)
    alone = _blocks_with_rows(personal) - _blocks_with_rows(shared)
    if alone:
        raise UnsupportedModelError(
            f"Block '{min(alone)}' has rows in personal tensors alone, which nobody sends: leave the block out."
        )
    return msgspec.structs.replace(layout, tensors=shared, personal=personal)


def _blocks_with_rows(tensors: Iterable[Tensor]) -> set[str]:
    segments = (segment for tensor in tensors for axis in tensor.rows for segment in axis)
    return {segment.block for segment in segments if segment.block is not None}
