"""What HetLoRA and FlexLoRA share: a client trains the first ranks of each adapter, as many as its tier affords."""

import msgspec

from edge_fl.core.adapters import adapters_of, rank_blocks
from edge_fl.core.bundle import Manifest
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.server_half import Weighting
from edge_fl.core.share import Share
from edge_fl.methods.base import Ask, Job, LocalHalf, Method, assigned_half, of_tier
from edge_fl.methods.capabilities import ChecksBundle, DrawsWithoutData, NarrowsBlocks

__all__ = ["RankMethod", "RankParameters"]


class RankParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What HetLoRA and FlexLoRA take.

    Parameters
    ----------
    widths
        The share of the bundle's rank that each tier trains, one a tier; the last serves every tier beyond.
    weighting
        ``samples`` weighs a client by its samples, ``clients`` weighs all alike.
    """

    widths: tuple[Share, ...] = (1000, 500, 250, 125)
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        if not self.widths or any(not 1 <= width <= 1000 for width in self.widths):
            raise ConfigError("The shares of a rank must be in (0, 1], one or more of them.")


class RankMethod(Method, DrawsWithoutData, ChecksBundle, NarrowsBlocks):
    """Clients of different means train adapters of different rank, and all that is trained beside them whole.

    A rank of r at width w keeps its first ceil(w r) ranks, in ``units`` mode: rows of A and columns of B.
    """

    Parameters = RankParameters
    parameters: RankParameters
    mode: Mode = "units"

    @property
    def weighting(self) -> Weighting:
        """By samples unless told otherwise."""
        return self.parameters.weighting

    @property
    def tiers(self) -> int:
        """As many as there are widths."""
        return len(self.parameters.widths)

    def unfit(self, manifest: Manifest) -> str | None:
        """A bundle without adapters, or with tensors of such names that the exporter did not make."""
        if manifest.adapters and manifest.adapters.keys() == adapters_of(manifest.layout).keys():
            return None
        if manifest.adapters and manifest.adapters.keys() == adapters_of(manifest.layout.trained).keys():
            return (
                f"'{self.name}' averages both halves of each adapter, and of '{manifest.name}' some are personal: "
                "export without --personal for these."
            )
        return (
            f"'{self.name}' gives each device adapters of its rank, and '{manifest.name}' has none: export with "
            "--train lora:LAYERS:r=16."
        )

    def narrowed(self, layout: Layout) -> frozenset[str]:
        """The ranks of adapters."""
        return rank_blocks(layout)

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """Of the tier's ranks, and of all other units."""
        return self._pattern(layout, tier).counts

    def assign(self, ask: Ask) -> Pattern:
        """The tier's first ranks."""
        return self._pattern(ask.layout, ask.tier)

    def local(self, job: Job) -> LocalHalf:
        """Train what was assigned."""
        return assigned_half(job, width=1000)  # of BatchNorm, whose layers are whole

    def _pattern(self, layout: Layout, tier: int) -> Pattern:
        return Pattern.prefix_of(layout, of_tier(self.parameters.widths, tier), rank_blocks(layout))
