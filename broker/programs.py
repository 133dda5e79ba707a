"""Whether a bundle holds every program that a method needs on a device."""

from edge_fl.bundle import Bundle
from edge_fl.methods.base import Method

__all__ = ["missing_program"]


def missing_program(bundle: Bundle, runtime: str, method: Method, tier: int, batch: int) -> str | None:
    """Say which program ``method`` needs at ``tier`` and ``runtime`` has not in ``bundle``; None when it has all."""
    for counts in method.programs(bundle.layout, tier):
        if bundle.manifest.step_program(runtime, method.variant, counts, batch) is None:
            kept = ", ".join(f"{block} {count}" for block, count in counts.items())
            return (
                f"The bundle has no '{method.variant}' program for runtime '{runtime}', kept units {kept} and "
                f"batch {batch}."
            )
    return None
