"""Shares: a number such as 0.5 for a person, thousandths on the wire."""

from edge_fl.core.errors import ConfigError

__all__ = ["parse_width", "parse_widths", "thousandths"]


def thousandths(rate: float) -> int:
    """A rate in [0, 1) as the integer that every language rounds alike; raises ConfigError outside."""
    value = round(rate * 1000) if 0 <= rate < 1 else 1000  # NaN compares false
    if value == 1000 or abs(rate * 1000 - value) > 1e-6:
        raise ConfigError(f"A dropout rate must be in [0, 1) and a multiple of 0.001, not {rate}.")
    return value


def parse_widths(text: str) -> tuple[int, ...]:
    """``0.2,0.4,1`` in thousandths; raises ConfigError."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--widths takes shares such as 0.5 or 0.2,0.4,1.0, not '{text}'.") from error
    return tuple(dict.fromkeys(parse_width(share) for share in shares))


def parse_width(width: float) -> int:
    """A kept share in thousandths; raises ConfigError outside (0, 1]."""
    value = round(width * 1000) if 0 < width <= 1 else 0  # NaN compares false
    if value < 1 or abs(width * 1000 - value) > 1e-6:
        raise ConfigError(f"A width must be in (0, 1] and a multiple of 0.001, not {width}.")
    return value
