"""Train-step programs, one file a variant, found by name: each has ``build(source) -> Step``."""

from collections.abc import Callable

from edge_fl.core.registry import Named
from exporter.source import Source, Step

__all__ = ["STEPS"]

STEPS: Named[Callable[[Source], Step]] = Named("train step", "exporter.steps", "build", group="edge_fl.steps")
"""The variants this version can export."""
