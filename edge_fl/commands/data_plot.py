"""The picture of a partition."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge_fl.core.errors import ConfigError

if TYPE_CHECKING:
    from edge_fl.data.statistics import PartStatistics

__all__ = ["draw_parts"]

_MOST_CLASSES = 100  # more cannot be told apart


def draw_parts(found: "PartStatistics", title: str, path: Path) -> None:
    """Draw clients by size: their samples and, below, the share of each class, or how many classes if there are many.

    Raises ConfigError when ``path`` cannot be written, or its ending is of no format that matplotlib knows.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    order = np.argsort(-found.samples, kind="stable")
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.bar(np.arange(len(order)), found.samples[order], width=1.0)
    above.set(ylabel="samples", title=title)
    if found.counts.shape[1] > _MOST_CLASSES:
        below.bar(np.arange(len(order)), found.labels[order], width=1.0, color="tab:green")
        below.set(ylabel="labels")
    else:
        shares = found.counts[order] / found.counts[order].sum(axis=1, keepdims=True)
        picture = below.imshow(
            shares.T,
            aspect="auto",
            interpolation="nearest",
            origin="lower",
            norm=PowerNorm(0.5, vmin=0.0),  # or one client with a single class would hide all the others
        )
        below.set(ylabel="label")
        figure.colorbar(picture, ax=below, label="share of the client's targets")
    below.set(xlabel="clients, largest first")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The plot cannot be written to '{path}': {error}.") from error
