"""Hostile clients: what some of a round's clients send in place of what they trained."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from device_sim.simulation.settings import TrainerSettings
from device_sim.simulation.trainer import Call, Trainer
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Weights
from edge_fl.data.registry import Samples
from edge_fl.training.update import Update
from edge_fl.wire.frame import Frame, decode_frame, encode_frame

__all__ = ["ATTACKS", "HostileSettings", "hostile_among"]

_FLIPPED = -5.0  # times the honest change
_SCALED = 10.0  # times the change of a poisoned training
_NOISE = 10.0  # times the root mean square of the honest change

Full = dict[str, NDArray[np.float32]]
_Made = Callable[[Sequence[Frame], int], list[Full]]


def hostile_among(calls: Sequence[Call], share: float, tier: int | None = None) -> frozenset[str]:
    """A ``share`` of a round's clients, evenly over their tiers, or all of one ``tier`` as far as it has so many."""
    ordered = sorted(calls, key=lambda call: (call.task.tier, call.client))
    if tier is not None:
        own = [call.client for call in ordered if call.task.tier == tier]
        return frozenset(own[: math.floor(share * len(ordered))])
    return frozenset(
        call.client for i, call in enumerate(ordered) if math.floor((i + 1) * share) > math.floor(i * share)
    )


def _times(factor: float) -> _Made:
    def made(frames: Sequence[Frame], clients: int) -> list[Full]:
        del clients
        return [{name: np.float32(factor) * array for name, array in frame.values.items()} for frame in frames]

    return made


def _noise(frames: Sequence[Frame], clients: int) -> list[Full]:
    """Normal noise, some times as large as the change."""
    del clients
    found = []
    for frame in frames:
        stream = Stream.of(seed=0, purpose="attack", client=frame.header.client, round=frame.header.round)
        rng = np.random.default_rng(stream.uint32(4))
        size = math.sqrt(
            sum(float(np.square(array).sum()) for array in frame.values.values())
            / max(sum(array.size for array in frame.values.values()), 1)
        )
        found.append(
            {
                name: np.float32(_NOISE * size) * rng.standard_normal(array.shape, dtype=np.float32)
                for name, array in frame.values.items()
            }
        )
    return found


def _little_is_enough(frames: Sequence[Frame], clients: int) -> list[Full]:
    """The attackers' mean minus z of their deviations, entry by entry over those who hold the entry (Baruch et al.
    2019, *A Little Is Enough*, Algorithm 3): as far off as still looks honest to a majority of ``clients``.
    """
    attackers = len(frames)
    supporters = clients // 2 + 1 - attackers
    z = NormalDist().inv_cdf(min(max((clients - attackers - supporters) / (clients - attackers), 0.5), 0.999))
    layout = frames[0].selection.layout
    made = {tensor.name: _off_by(z, frames, tensor.name, tensor.shape) for tensor in layout.tensors}
    return [frame.selection.gather(made) for frame in frames]


def _off_by(z: float, frames: Sequence[Frame], name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    total, squares, held = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for frame in frames:
        where = frame.selection.index(frame.selection.layout.tensor(name))
        total[where] += frame.values[name]
        squares[where] += np.square(frame.values[name], dtype=np.float64)
        held[where] += 1
    count = np.maximum(held, 1)
    deviation = np.sqrt(np.maximum(squares / count - np.square(total / count), 0))
    return (total / count - z * deviation).astype(np.float32)


ATTACKS: Mapping[str, _Made] = {
    "label-flip": _times(1),
    "sign-flip": _times(_FLIPPED),
    "scaling": _times(_SCALED),
    "noise": _noise,
    "little-is-enough": _little_is_enough,
}
"""What attackers make of the updates that they have trained. Those of ``label-flip`` and ``scaling`` train on flipped
labels.
"""
_POISONED = ("label-flip", "scaling")


class HostileSettings(TrainerSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The stacked trainer, where a ``share`` of a round's clients ``attack``: of one ``tier``, if it says which."""

    attack: str
    share: float
    tier: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attack not in ATTACKS:
            raise ConfigError(f"There is no attack '{self.attack}'; there are {', '.join(ATTACKS)}.")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"The share of attackers is in [0, 1], not {self.share:g}.")

    def open(self, bundle: Bundle) -> Trainer:
        """The trainer, with attackers among its clients."""
        return _HostileTrainer(super().open(bundle), bundle, self)


class _HostileTrainer(Trainer):
    """Trains a round's clients, and puts what attackers send in place of what they trained."""

    def __init__(self, honest: Trainer, bundle: Bundle, settings: HostileSettings) -> None:
        self._honest, self._bundle, self._settings = honest, bundle, settings

    def updates(self, model: bytes, calls: Iterable[Call], count: int) -> Iterator[Update]:
        """As the honest trainer's, in the same order; a round's updates are in memory together."""
        every = list(calls)
        settings = self._settings
        hostile = hostile_among(every, settings.share, settings.tier)
        if settings.attack in _POISONED:
            every = [self._poisoned(call) if call.client in hostile else call for call in every]
        updates = list(self._honest.updates(model, every, count))
        places = [i for i, call in enumerate(every) if call.client in hostile]
        if places:
            layout = self._bundle.layout
            frames = [decode_frame(updates[i].frame, layout) for i in places]
            for i, frame, values in zip(places, frames, ATTACKS[settings.attack](frames, count), strict=True):
                updates[i] = replace(updates[i], frame=_encoded(frame, values, layout))
        return iter(updates)

    def _poisoned(self, call: Call) -> Call:
        """Every label is the class that is as far from the last one as the true one is from the first."""
        samples = call.samples
        flipped = Samples(samples.x, self._bundle.manifest.classes - 1 - samples.y, samples.owner)
        return replace(call, samples=flipped)

    def close(self) -> None:
        """Close the honest one."""
        self._honest.close()


def _encoded(frame: Frame, values: Weights, layout: Layout) -> bytes:
    """The frame with other values for what it keeps."""
    full = {tensor.name: np.zeros(tensor.shape, dtype=np.float32) for tensor in layout.tensors}
    frame.selection.scatter(values, full)
    return encode_frame(frame.header, frame.pattern, full)
