"""Whether a device's data is what a bundle's model takes."""

from edge_fl.bundle import Manifest
from edge_fl.data.registry import Samples
from edge_fl.errors import DataError

__all__ = ["check_fit"]


def check_fit(samples: Samples, manifest: Manifest) -> None:
    """Refuse samples of another shape or with labels the model has no output for: DataError."""
    shape = samples.x.shape[1:]
    if shape != manifest.input.shape:
        raise DataError(
            f"The data has samples of shape {shape}, and '{manifest.name}' takes {manifest.input.shape}; "
            "give --data that fits."
        )
    if len(samples.y) and not 0 <= samples.y.min() <= samples.y.max() < manifest.classes:
        raise DataError(
            f"The data has labels {samples.y.min()} to {samples.y.max()}, and '{manifest.name}' knows "
            f"{manifest.classes} classes; give --data that fits."
        )
