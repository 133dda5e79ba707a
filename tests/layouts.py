"""Layouts that tests of several packages share."""

from edge_fl.core.layout import Block, Layout, Segment, Tensor

_UNITS = ((Segment("b"),),)

TWO_PARAMETERS = Layout(
    (Block("b", 3),),
    (
        Tensor("w", (3,), rows=_UNITS, units=_UNITS),
        Tensor("v", (3,), rows=_UNITS, units=_UNITS),
        Tensor("var", (3,), rows=_UNITS, units=_UNITS, role="statistic"),
    ),
)
"""``w`` and ``v``, and the statistic ``var``, of three units."""
