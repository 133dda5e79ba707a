"""Panels side by side in one PNG, as every picture of a benchmark is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["panels"]


@contextmanager
def panels(path: Path, *, columns: int, title: str) -> Iterator[Sequence["Axes"]]:
    """Give ``columns`` axes to draw on, and write them to ``path`` at the end; the first has the legend."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(5.2 * columns, 4.4), layout="constrained", squeeze=False)
    figure.suptitle(title)
    yield list(axes[0])
    for panel in axes[0]:
        panel.grid(alpha=0.3)
    axes[0][0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
