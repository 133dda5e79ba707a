"""What a compressor is told of the vector that it is given, for vectors that belong to no model."""

import numpy as np

from edge_fl.core.layout import Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.wire.context import Context


def of_entries(*sizes: int, round: int = 1, shared: bytes = b"") -> Context:
    """A model of one tensor a size, all kept; one of size 0 is left out."""
    tensors = tuple(
        Tensor(f"t{i}", (n,), ((Segment(None, inner=n),),), ((Segment(None, inner=n),),))
        for i, n in enumerate(sizes)
        if n
    )
    layout = Layout((), tensors)
    return Context(Selection.of(Pattern(layout, np.zeros(0, dtype=np.bool_)), "rows"), round, shared)
