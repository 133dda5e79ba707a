"""What a forward pass leaves behind in its modules: a program is a function, and would leave it out."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

__all__ = ["State", "changed_attribute", "module_state"]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_TORCHS_OWN = ("_parameters", "_modules", "_non_persistent_buffers_set", "_is_full_backward_hook")

State = dict[tuple[str, str], Any]
"""What modules hold, by the module's name and the attribute's."""


@dataclass(frozen=True)
class _Object:
    """Equal to itself alone, whatever the object says of equality; a tensor only as long as nobody writes to it."""

    value: Any
    version: int = 0

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self.value is other.value and self.version == other.version


def module_state(model: nn.Module) -> State:
    """What every module holds beside parameters, by module and attribute; BatchNorm's statistics are followed."""
    state: State = {}
    for where, module in model.named_modules():
        if not isinstance(module, _BATCH_NORMS):
            held = {name: value for name, value in vars(module).items() if name not in _TORCHS_OWN}
            buffers = held.pop("_buffers", {})
            state |= {(where, name): _frozen(value) for name, value in {**held, **buffers}.items()}
    return state


def changed_attribute(before: State, after: State) -> tuple[str, str] | None:
    """The first module and attribute that differ, if any."""
    return next((key for key in {**after, **before} if before.get(key) != after.get(key)), None)


def _frozen(value: Any) -> Any:
    match value:
        case Tensor():
            return _Object(value, value._version)
        case None | bool() | int() | float() | complex() | str() | bytes():
            return value
        case list() | tuple():
            return tuple(_frozen(part) for part in value)
        case dict():
            return tuple((_frozen(key), _frozen(part)) for key, part in value.items())
        case set() | frozenset():
            return frozenset(value)
        case _:
            return _Object(value)
