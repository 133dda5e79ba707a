"""Names of what modules hold, as ``named_parameters`` gives them."""

__all__ = ["within"]


def within(module: str, name: str) -> str:
    """The name in the model of what a ``module`` of it calls ``name``; a module called "" is the model itself."""
    return f"{module}.{name}" if module else name
