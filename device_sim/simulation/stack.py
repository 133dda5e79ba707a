"""Clients that keep equally many units of every block: their kept entries stacked, and one step for all of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sim.simulation.stacked_program import BoundStep
from device_sim.simulation.whole_model import whole_model
from edge_fl.core.bundle import FROZEN_TENSOR, NEW, TENSOR, Bundle, Program
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, kept_shape
from edge_fl.core.width_statistics import one_hot
from edge_fl.training.local_run import LocalRun, StepInputs

__all__ = ["Member", "Stack"]


class Member:
    """One client: its training, its model for stacks on ``device``, and the step whose kept entries lie in one."""

    def __init__(self, run: LocalRun, device: torch.device) -> None:
        self.run, self.model = run, whole_model(run.full, device)
        self.follow()

    def follow(self) -> None:
        """Turn to what the next step trains."""
        self._step = self.run.step
        self.selection = Selection.of_trained(self._step.pattern)

    @property
    def pattern(self) -> Pattern:
        """The units whose entries lie in a stack."""
        return self._step.pattern

    @property
    def moved(self) -> bool:
        """Whether the next step trains something else."""
        return self.run.step != self._step


class Stack:
    """The kept entries of K clients, with the clients as first axis.

    Parameters
    ----------
    members
        The clients; their selections have the same shapes, their scales and settings are equal.
    program
        The step that will be made, which says what optimiser state there is.
    device
        Where the tensors lie.
    bundle
        Says which widths BatchNorm has statistics of, and holds what is never trained.
    whole
        What of that no pattern cuts, by input name, on the device already: one copy serves all stacks.

    Attributes
    ----------
    lasting
        Inputs of every step, by name: their memory stays where it is.
    bound
        The step, bound to these; None until it is made.
    """

    bound: BoundStep | None = None

    def __init__(
        self,
        members: Sequence[Member],
        program: Program,
        device: torch.device,
        bundle: Bundle,
        whole: Mapping[str, Tensor],
    ) -> None:
        self.members = tuple(members)
        self._widths = bundle.manifest.statistic_widths
        first = members[0].selection
        shapes = {f"{TENSOR}{spec.name}": first.shape(spec) for spec in first.layout.tensors}
        outputs = [name.removeprefix(NEW) for name in program.outputs if name.startswith(NEW)]
        self._slots = {name: shapes[f"{TENSOR}{name.partition('.')[2]}"] for name in outputs if name not in shapes}
        self._device, count = device, len(members)
        self._held = {
            name: torch.empty((count, *shape), device=device) for name, shape in {**shapes, **self._slots}.items()
        }
        shared = {"lr": members[0].run.settings.lr, "scale": members[0].run.step.scale}
        self._shared = {name: torch.tensor(value, device=device) for name, value in shared.items()}
        self._bundle, self._whole = bundle, whole
        self._cut = {
            f"{FROZEN_TENSOR}{spec.name}": torch.empty(
                (count, *kept_shape(spec, members[0].pattern)), dtype=getattr(torch, spec.dtype), device=device
            )
            for spec in bundle.layout.frozen
            if not spec.whole
        }
        batch, samples = members[0].run.settings.batch, members[0].run.samples
        self._drawn = {  # memory that every step uses again
            "x": np.empty((count, batch, *samples.x.shape[1:]), dtype=samples.x.dtype),
            "y": np.empty((count, batch, *samples.y.shape[1:]), dtype=samples.y.dtype),
            "sample_weight": np.empty((count, batch), dtype=np.float32),
            "number": np.empty((), dtype=np.float32),
        }
        self._batch = {name: torch.from_numpy(array).to(device) for name, array in self._drawn.items()}
        self.lasting = {**self._held, **self._whole, **self._cut, **self._shared, **self._batch}
        self.load(self.members)

    def load(self, members: Iterable[Member]) -> None:
        """Take what these members keep from their full models."""
        for member in members:
            index = self.members.index(member)
            member.model.load(member.selection, *self._parts(index))
            kept_frozen = self._bundle.frozen.kept(member.pattern) if self._cut else {}
            for name, part in self._cut.items():
                part[index].copy_(torch.from_numpy(kept_frozen[name.removeprefix(FROZEN_TENSOR)]))

    def put_back(self, members: Iterable[Member]) -> None:
        """Write what is held of these members back into their full models."""
        for member in members:
            member.model.put_back(member.selection, *self._parts(self.members.index(member)))

    def _parts(self, index: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """One member's tensors, and its slots."""
        held = {name: tensor[index] for name, tensor in self._held.items()}
        slots = {name: held.pop(name) for name in self._slots}
        return held, slots

    def draw(self) -> dict[str, Tensor]:
        """Bring lasting inputs up to date for the members' next step; its other inputs, by name."""
        each = [member.run.inputs(member.selection) for member in self.members]
        self._draw_batches(each)
        extra = {name: self._stacked([one.extra[name] for one in each]) for name in each[0].extra}
        return {**extra, **self._width([one.width for one in each])}

    def _draw_batches(self, each: Sequence[StepInputs]) -> None:
        """The number of the step, and a batch of each member."""
        drawn = self._drawn
        drawn["number"][...] = each[0].number
        for index, (member, one) in enumerate(zip(self.members, each, strict=True)):
            one.drawn.into(member.run.samples, drawn["x"][index], drawn["y"][index], drawn["sample_weight"][index])
        if self._device.type != "cpu":  # there it is the same memory
            for name, array in drawn.items():
                self._batch[name].copy_(torch.from_numpy(array))

    def _width(self, trained: Sequence[int]) -> dict[str, Tensor]:
        if not self._widths:
            return {}
        return {"width": self._stacked([one_hot(self._widths, width) for width in trained])}

    def step(self, fresh: Mapping[str, Tensor]) -> None:
        """Make one step of every member by ``bound``, in place; RunError when a loss is not finite."""
        assert self.bound is not None
        with torch.no_grad():
            losses = self.bound(fresh).tolist()
        for member, loss in zip(self.members, losses, strict=True):
            member.run.stepped(loss)

    def _stacked(self, arrays: Sequence[NDArray[Any]]) -> Tensor:
        stacked = arrays[0][np.newaxis] if len(arrays) == 1 else np.stack(arrays)
        return torch.from_numpy(stacked).to(self._device)
