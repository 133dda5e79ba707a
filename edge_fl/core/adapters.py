"""Which tensors are low-rank adapters (Hu et al., 2021), by the names that Hugging Face's PEFT gives them."""

from typing import NamedTuple

from edge_fl.core.layout import Layout, Tensor

__all__ = ["DOWN", "UP", "Adapter", "adapters_of", "rank_blocks"]

DOWN, UP = ".lora_A.weight", ".lora_B.weight"


class Adapter(NamedTuple):
    """A of shape ``[r, ...]`` (``down``) and B of shape ``[out, r, ...]`` (``up``), beside a frozen layer."""

    down: Tensor
    up: Tensor

    @property
    def fits(self) -> bool:
        """Whether B takes what A gives, rank by rank, and their product is a matrix."""
        ranks = self.up.units[1:2]
        return ranks == self.down.units[:1] and all(n == 1 for n in self.up.shape[2:])


def adapters_of(layout: Layout) -> dict[str, Adapter]:
    """The adapters of a layout by the name of the layer that each is beside, in the layout's order."""
    by_name = {tensor.name: tensor for tensor in layout.parameters}
    pairs = ((name.removesuffix(DOWN), name) for name in by_name if name.endswith(DOWN))
    return {layer: Adapter(by_name[name], by_name[layer + UP]) for layer, name in pairs if layer + UP in by_name}


def rank_blocks(layout: Layout) -> frozenset[str]:
    """The blocks whose units are the ranks of adapters."""
    return frozenset(
        segment.block
        for adapter in adapters_of(layout).values()
        for segment in adapter.down.units[0]
        if segment.block is not None
    )
