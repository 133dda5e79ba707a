"""Recurrent layers that are trained with some of their hidden units left out, and traced with their loops whole."""

from exporter.recurrent.axes import recurrent_axes
from exporter.recurrent.loop import unrolled
from exporter.recurrent.replace import replace_recurrent

__all__ = ["recurrent_axes", "replace_recurrent", "unrolled"]
