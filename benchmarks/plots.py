"""Panels side by side in one PNG, as every picture of a benchmark is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["panels"]

_MOST_INSIDE = 8  # lines of a legend


@contextmanager
def panels(path: Path, *, columns: int, title: str) -> Iterator[Sequence["Axes"]]:
    """Give ``columns`` axes to draw on, and write them to ``path`` at the end.

    The first has the legend, but a long one, which would cover what is drawn, is beside them all.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(5.2 * columns, 4.4), layout="constrained", squeeze=False)
    figure.suptitle(title)
    yield list(axes[0])
    for panel in axes[0]:
        panel.grid(alpha=0.3)
    if len(axes[0][0].get_legend_handles_labels()[1]) > _MOST_INSIDE:
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    else:
        axes[0][0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
