"""A bundle's torch train step, made one of many clients at once that leaves its results in the tensors it is given.

``torch.func.vmap`` makes every operation one over clients; what it is traced to is then rewritten
(:mod:`device_sim.simulation.step_rewriting`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from device_sim.simulation.lasting_inputs import take_out_views
from device_sim.simulation.small_convolutions import SMALL, unfoldings, write_as_products
from device_sim.simulation.step_rewriting import Rewriting
from edge_fl.core.bundle import FROZEN_TENSOR, Bundle, Program
from edge_fl.runtimes.torch_eager import open_graph

__all__ = ["BoundStep", "StackedStep", "StepGraph"]

_aten = torch.ops.aten
_SHARED = ("lr", "scale", "number")

BoundStep = Callable[[Mapping[str, Tensor]], Tensor]
"""Takes those of a step's inputs by name that do not last; writes the new tensors and slots over the old ones, and
gives the losses ``[K]``."""


class StepGraph:
    """One train step of a bundle, for any widths, before it is stacked.

    Parameters
    ----------
    bundle
        Holds ``program``.
    program
        A step of the runtime ``torch_eager``.
    device
        Where it is made.

    Attributes
    ----------
    multiplies_images
        Whether small convolutions were written as products.
    """

    def __init__(self, bundle: Bundle, program: Program, device: torch.device) -> None:
        self._module = open_graph(bundle, program, device)
        for node in self._module.graph.nodes:
            if node.target is _aten.sym_size.int:
                node.target = _size  # vmap knows no symbolic sizes
        self._inputs, self._outputs = program.inputs, program.outputs
        self._convolutions = unfoldings(self._module.graph, program.inputs)
        self.multiplies_images = device.type == "cpu" and write_as_products(self._module.graph)
        self._module.recompile()
        self._shared = {*_SHARED, *(f"{FROZEN_TENSOR}{t.name}" for t in bundle.layout.frozen if t.whole)}

    def convolves(self, shapes: Mapping[str, Sequence[int]], batch: int) -> bool:
        """Whether there is a convolution in it that stays one, for a batch and weights of these shapes, by input."""
        stay = not self.multiplies_images
        return any(stay or each.size(shapes, batch) > SMALL for each in self._convolutions)

    def stacked(
        self, example: Mapping[str, Tensor], *, lasting: Collection[str], lr: float, scale: float
    ) -> "StackedStep":
        """The step for inputs of the shapes and on the device of ``example``, at this step size and scale.

        Those named ``lasting`` lie in the same memory at every step.
        """
        alone = len(example["x"]) == 1
        axes = tuple(None if name in self._shared else 0 for name in self._inputs)
        step: Callable[..., Any] = self._flat if alone else vmap(self._flat, in_dims=axes)
        single = {name for name in self._inputs if alone and name not in self._shared}
        ordered = [example[name][0] if name in single else example[name] for name in self._inputs]
        with torch.no_grad():  # of inputs without entries; of others torch would describe each value by itself
            module = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*ordered)
        Rewriting(module.graph, self._inputs, lr=lr, scale=scale).run(self._outputs)
        return StackedStep(module, self._inputs, lasting=lasting, single=single)

    def _flat(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._module(*inputs))


class StackedStep:
    """A train step of K clients, for inputs of given shapes.

    All inputs but the shared ones have clients as first axis. Views of inputs that last are made once, when the step is
    bound to them.

    Parameters
    ----------
    module
        Takes ``inputs``, and gives the loss.
    lasting
        Names of inputs whose memory stays where it is.
    single
        Names of inputs whose axis of one client ``module`` does without.
    """

    def __init__(
        self, module: GraphModule, inputs: Sequence[str], *, lasting: Collection[str], single: Collection[str]
    ) -> None:
        given = module.graph.find_nodes(op="placeholder")
        stays = {node for name, node in zip(inputs, given, strict=True) if name in lasting}
        self._views = GraphModule({}, take_out_views(module.graph, stays))
        module.graph.lint()
        module.recompile()
        self._module, self._inputs, self._single = module, tuple(inputs), single
        self._lasting = [name for name in inputs if name in lasting]

    def bound(self, lasting: Mapping[str, Tensor]) -> BoundStep:
        """The step on inputs that last, by name."""
        module, held = self._module, {name: self._own(name, lasting[name]) for name in self._lasting}
        further = self._views(*held.values())
        given = [*map(held.get, self._inputs), *further]
        fresh = [(place, name) for place, name in enumerate(self._inputs) if name not in held]

        def step(inputs: Mapping[str, Tensor]) -> Tensor:
            for place, name in fresh:
                given[place] = self._own(name, inputs[name])
            losses: Tensor = module(*given).reshape(-1)
            for place, _ in fresh:
                given[place] = None  # its memory is not held until the next step
            return losses

        return step

    def _own(self, name: str, tensor: Tensor) -> Tensor:
        """A single client needs no axis of its own."""
        return tensor[0] if name in self._single else tensor


def _size(tensor: Tensor, axis: int) -> int:
    return tensor.shape[axis]
