"""Other people's errors in one line."""

__all__ = ["first_line"]


def first_line(error: Exception) -> str:
    """The type and the first line of what an error says, without a full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
