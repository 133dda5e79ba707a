"""The model that a run ends with, as each device can use it."""

from broker.model import GlobalModel
from broker.tiers import Tiers
from edge_fl.core.selection import Weights
from edge_fl.core.width_factor import with_factor
from edge_fl.methods.capabilities import evaluated_width, width_factor
from edge_fl.recipes.recipe import Recipe
from edge_fl.training.evaluator import Evaluator
from edge_fl.wire.messages import Register

__all__ = ["FinalModel"]


class FinalModel:
    """Frames of the first units of each block, one for each width that a tier evaluates.

    Parameters
    ----------
    model
        As it is after the last round.
    weights
        What the run gives of it: full tensors by name.
    recipe, tiers
        Say how wide a device's model is.
    evaluator
        Knows which BatchNorm statistics suit a width.
    """

    def __init__(
        self, model: GlobalModel, weights: Weights, *, recipe: Recipe, tiers: Tiers, evaluator: Evaluator
    ) -> None:
        self._model, self._weights = model, weights
        self._recipe, self._tiers, self._evaluator = recipe, tiers, evaluator
        self._made: dict[int, tuple[bytes, int]] = {}

    def of(self, client: str, profile: Register) -> tuple[bytes, int, int]:
        """A device's frame, its width and the width of its statistics, both in thousandths."""
        width = evaluated_width(self._recipe.method, self._tiers.of(client, profile))
        if width not in self._made:
            manifest = self._evaluator.manifest
            own = with_factor(manifest, self._weights, width_factor(self._recipe.method, manifest, width))
            frame = self._model.narrowed_frame(own, width)
            self._made[width] = frame, self._evaluator.statistics(self._weights, width)
        frame, statistics = self._made[width]
        return frame, width, statistics
