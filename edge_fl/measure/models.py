"""Layouts and weights that benchmarks and tests need without an exporter, and so without torch."""

import itertools

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Axis, Block, Layout, Segment, Tensor

__all__ = ["mlp_layout", "random_weights"]


def mlp_layout(*sizes: int) -> Layout:
    """The layout of a ReLU perceptron with ``sizes`` (inputs, hidden ..., outputs), as the exporter derives it."""
    blocks, tensors = [], []
    before: Axis = (Segment(None, inner=sizes[0]),)
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = layer == len(sizes) - 2
        name = f"layer{layer}"
        own: Axis = (Segment(None, inner=outputs),) if last else (Segment(name),)
        free: Axis = (Segment(None, inner=inputs),)
        if not last:
            blocks.append(Block(name, outputs))
        tensors.append(
            Tensor(f"{name}.weight", (outputs, inputs), rows=(own, free), units=(own, before)),
        )
        tensors.append(Tensor(f"{name}.bias", (outputs,), rows=(own,), units=(own,)))
        before = own
    return Layout(tuple(blocks), tuple(tensors))


def random_weights(layout: Layout, seed: int) -> dict[str, NDArray[np.float32]]:
    """Standard normal tensors of every shape of ``layout``."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in layout.tensors}
