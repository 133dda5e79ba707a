"""The trainer that advances many clients at once, with one step of the optimiser for all of a stack.

What is trained, on what and for how long is each client's own :class:`~edge_fl.training.local_run.LocalRun`, as on a
device. The clients of a slice advance in lock step; after every step those whose pattern changed are gathered anew,
and stacks are formed of those that keep equally many units of every block.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from device_sim.simulation.stack import Member, Stack
from device_sim.simulation.stacked_program import StackedStep, StepGraph
from device_sim.simulation.trainer import STACKED_RUNTIME, LocalTrainer, power_of_two
from edge_fl.core.bundle import FROZEN_TENSOR, TENSOR, Bundle, Program
from edge_fl.core.errors import ConfigError, RuntimeMissingError
from edge_fl.core.selection import Selection
from edge_fl.runtimes.torch_eager import open_device
from edge_fl.training.local_run import LocalRun, LocalSettings, draw_first
from edge_fl.training.update import Update, Visit

__all__ = ["StackedTrainer"]

_SLICE_BYTES = {"cpu": 6 << 20, "cuda": 1 << 30}  # of kept entries: on a CPU, what stays in its caches
# The same where there are convolutions, which are no quicker in groups. On CUDA what is small is, for its kernels take
# no longer than their launches. On a CPU small ones are written as products.
_CONVOLVING_BYTES = {"cpu": 0, "cuda": 32 << 20}
# Of clients, however small the model: each holds its samples, activations and full weights besides, which the bytes
# leave out.
_MOST = {"cpu": 64, "cuda": 1024}
_MOST_OF_IMAGES = 8  # where small convolutions are products: what a client's images unfold to takes megabytes


class _Key(NamedTuple):
    """What the members of a stack have in common."""

    variant: str
    counts: tuple[int, ...]
    scale: float
    settings: LocalSettings

    @classmethod
    def of(cls, run: LocalRun) -> "_Key":
        return cls(run.variant, tuple(run.step.pattern.counts.values()), run.step.scale, run.settings)


_Stacks = dict[tuple[_Key, tuple[Member, ...]], Stack]


class StackedTrainer(LocalTrainer):
    """Trains slices of the clients of a round, each slice at once.

    Results depend on how many clients there are in a slice, by rounding; that is a function of the kind of device, of
    how much the slice's first client keeps, and of how many clients the round has left. Large convolutions are
    slower in groups than one after another on a CPU, and no quicker on CUDA: there a slice is one client. On a CPU
    small ones are products (:mod:`device_sim.simulation.small_convolutions`).

    Parameters
    ----------
    bundle
        Holds programs for ``torch_eager``.
    device
        ``cpu`` or ``cuda``.
    threads
        CPU threads, the whole process's.

    Raises
    ------
    RuntimeMissingError
        When the bundle holds no such programs, or there is no such device.
    """

    def __init__(self, bundle: Bundle, *, device: str = "cpu", threads: int = 1) -> None:
        if STACKED_RUNTIME not in bundle.manifest.programs:
            raise RuntimeMissingError(
                "The stacked trainer runs torch's programs, and the bundle holds none: export it with --runtime "
                "torch-eager too, or simulate with --trainer runtime."
            )
        super().__init__(bundle)
        self._device = _device(device)
        torch.set_num_threads(threads)
        self._whole = {
            f"{FROZEN_TENSOR}{spec.name}": torch.from_numpy(bundle.frozen.whole[spec.name]).to(self._device)
            for spec in bundle.layout.frozen
            if spec.whole
        }
        self._graphs: dict[str, StepGraph] = {}
        self._steps: dict[tuple[_Key, int], StackedStep] = {}
        self._lr = 0.0  # theirs

    def _trained(self, visits: Iterable[Visit]) -> Iterator[Update]:
        waiting = iter(visits)
        for first in waiting:
            held = [first, *islice(waiting, self._slice(first.run) - 1)]
            draw_first([visit.run for visit in held])
            self._train([Member(visit.run, self._device) for visit in held])
            yield from (visit.update() for visit in held)

    def _slice(self, run: LocalRun) -> int:
        """How many clients are trained at once: a power of two, as stacks are."""
        kind = self._device.type
        kept, graph = Selection.of_trained(run.step.pattern), self._graph(run.variant)
        shapes = {f"{TENSOR}{tensor.name}": kept.shape(tensor) for tensor in kept.layout.tensors}
        convolves = graph.convolves(shapes, run.settings.batch)
        held = (_CONVOLVING_BYTES if convolves else _SLICE_BYTES)[kind]
        most = _MOST_OF_IMAGES if graph.multiplies_images else _MOST[kind]
        size = 4 * sum(map(math.prod, shapes.values()))
        return power_of_two(min(max(held // size, 1), most))

    def _train(self, members: Sequence[Member]) -> None:
        stacks = self._restacked({}, members)
        for _ in range(members[0].run.settings.steps):
            for (key, _), stack in stacks.items():
                fresh = stack.draw()
                if stack.bound is None:
                    stack.bound = self._step(key, stack.lasting, fresh).bound(stack.lasting)
                stack.step(fresh)
            if any(member.moved for member in members):
                stacks = self._restacked(stacks, members)
        for stack in stacks.values():
            stack.put_back(stack.members)
        for member in members:
            member.model.finish()

    def _restacked(self, stacks: _Stacks, members: Sequence[Member]) -> _Stacks:
        """Stacks for what the members train next; of one that stays together, only those who moved are gathered."""
        moved = [member for member in members if member.moved]
        wanted = list(_divided(members))
        for place, stack in stacks.items():
            stack.put_back([m for m in stack.members if m in moved or place not in wanted])
        for member in moved:
            member.follow()
        for place in wanted:
            if place in stacks:
                stacks[place].load([m for m in place[1] if m in moved])
        return {place: stacks.get(place) or self._stack(*place) for place in wanted}

    def _stack(self, key: _Key, members: tuple[Member, ...]) -> Stack:
        return Stack(members, self._program(key.variant), self._device, self._bundle, self._whole)

    def _program(self, variant: str) -> Program:
        layout = self._bundle.layout
        program = self._bundle.manifest.step_program(STACKED_RUNTIME, variant, layout.sizes, None)
        if program is None:
            raise RuntimeMissingError(
                f"The bundle has no {STACKED_RUNTIME} '{variant}' program; export it with --variant {variant}."
            )
        return program

    def _graph(self, variant: str) -> StepGraph:
        if variant not in self._graphs:
            self._graphs[variant] = StepGraph(self._bundle, self._program(variant), self._device)
        return self._graphs[variant]

    def _step(self, key: _Key, lasting: Mapping[str, Tensor], fresh: Mapping[str, Tensor]) -> StackedStep:
        """The step for these shapes, made when first asked for."""
        place = (key, len(lasting["x"]))
        if key.settings.lr != self._lr:  # no earlier one comes back, but by chance
            self._steps, self._lr = {}, key.settings.lr
        if place not in self._steps:
            graph = self._graph(key.variant)
            example = {**lasting, **fresh}
            self._steps[place] = graph.stacked(example, lasting=set(lasting), lr=key.settings.lr, scale=key.scale)
        return self._steps[place]


def _divided(members: Sequence[Member]) -> Iterator[tuple[_Key, tuple[Member, ...]]]:
    """The members of equal keys, in powers of two, so that few programs serve any number of them."""
    by_key: dict[_Key, list[Member]] = {}
    for member in members:
        by_key.setdefault(_Key.of(member.run), []).append(member)
    for key, alike in by_key.items():
        while alike:
            size = power_of_two(len(alike))
            yield key, tuple(alike[:size])
            alike = alike[size:]  # noqa: PLW2901


def _device(name: str) -> torch.device:
    if name not in _MOST:
        raise ConfigError(f"A simulation runs on {' or '.join(_MOST)}, not on '{name}'.")
    return open_device(name)
