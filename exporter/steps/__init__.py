"""Train-step programs, one file a variant, found by name: each has ``build(source) -> Step``."""

import importlib
import pkgutil

from edge_fl.core.errors import ConfigError
from exporter import steps
from exporter.source import Source, Step

__all__ = ["build_step", "step_names"]


def step_names() -> list[str]:
    """The variants this version can export."""
    names = (module.name for module in pkgutil.iter_modules(steps.__path__))
    return sorted(name for name in names if not name.startswith("_"))


def build_step(variant: str, source: Source) -> Step:
    """The train step called ``variant`` of a model; raises ConfigError when there is none of that name."""
    if variant not in step_names():
        raise ConfigError(f"There is no train step '{variant}'; there are {', '.join(step_names())}.")
    built: Step = importlib.import_module(f"exporter.steps.{variant}").build(source)
    return built
