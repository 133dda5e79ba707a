"""A person's own code, such as the method in ``mine.py:Mine``, made known under plain names."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from edge_fl.aggregation.robust.base import ROBUST
from edge_fl.compressors.base import COMPRESSORS
from edge_fl.core.errors import ConfigError
from edge_fl.core.registry import load_object, loaded_digest
from edge_fl.methods.base import METHODS
from edge_fl.metrics.base import METRICS

__all__ = [
    "code_digests",
    "each_spec",
    "plain_recipe",
    "plain_robust",
    "use_code",
    "use_code_again",
    "used_code",
]

_logger = logging.getLogger(__name__)


def plain_recipe(text: str) -> tuple[str, tuple[str, ...]]:
    """A recipe such as ``mine.py:Mine+dgc`` by plain names, and the specs in it, their files by absolute paths.

    Raises
    ------
    ConfigError
        When a spec cannot be had, or is neither a method nor a compressor.
    """
    parts = text.split("+")
    for part in parts:
        if part.endswith(".py"):
            raise ConfigError(f"'{part}' is a file: name the class in it, as in '{part}:CLASS'.")
    specs = tuple(_absolute(part) for part in parts if ":" in part)
    named = iter(use_code(specs))
    return "+".join(next(named) if ":" in part else part for part in parts), specs


def plain_robust(text: str | None) -> tuple[str | None, tuple[str, ...]]:
    """A robust rule such as ``trimmed-mean`` or ``mine.py:Mine`` by its plain name, and the spec in it, if any.

    Raises
    ------
    ConfigError
        When there is none of that name, or what the spec names is no robust rule.
    """
    if text is None:
        return None, ()
    if ":" in text:
        spec = _absolute(text)
        return ROBUST.use(spec), (spec,)
    name = text.replace("-", "_")
    ROBUST.check(name)
    return name, ()


def each_spec(texts: Sequence[str]) -> list[str]:
    """The specs in texts such as ``fedavg+mine.py:Mine``, as a coordinator is given them, without the names we know."""
    known = {part for name in (*METHODS.names(), *COMPRESSORS.names()) for part in name.split("+")}
    found = []
    for text in texts:
        parts = [part for part in text.split("+") if part not in known]
        found += parts if all(":" in part for part in parts) else [text]  # a path may have a + in it
    return found


def use_code(specs: Sequence[str]) -> list[str]:
    """Make what ``specs`` name known on this machine, and say their names.

    Raises
    ------
    ConfigError
        When one cannot be had, or is of no kind that a run can use.
    """
    return [_use(spec) for spec in specs]


def code_digests(specs: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of each file that ``specs`` name, by its path, as it was when this process loaded it."""
    files = {module for module, _, _ in (spec.rpartition(":") for spec in specs) if module.endswith(".py")}
    return {file: digest for file in sorted(files) if (digest := loaded_digest(Path(file)))}


def use_code_again(specs: Sequence[str], digests: Mapping[str, str]) -> None:
    """As :func:`use_code`; warns of files that were others when :func:`code_digests` gave ``digests``."""
    use_code(specs)
    for file, digest in code_digests(specs).items():
        if digests.get(file, digest) != digest:
            _logger.warning(
                "'%s' was another file when the run began: the rounds to come follow other code than those before.",
                file,
            )


def used_code() -> list[str]:
    """The specs of all code that was made known in this process, files by absolute paths, for another to use it."""
    registries = (METHODS, COMPRESSORS, METRICS)
    return [_absolute(spec) for registry in registries for spec in registry.used()]


def _use(spec: str) -> str:
    found = load_object(spec)
    for registry in (METHODS, COMPRESSORS, METRICS, ROBUST):
        if registry.is_one(found):
            return registry.use(spec)
    raise ConfigError(
        f"'{spec}' is no method, compressor, metric or robust rule: it must extend one of edge_fl's classes."
    )


def _absolute(spec: str) -> str:
    module, _, name = spec.rpartition(":")
    return f"{Path(module).resolve()}:{name}" if module.endswith(".py") else spec
