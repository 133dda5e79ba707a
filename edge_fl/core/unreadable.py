"""What msgspec raises on bytes that are not as they were written."""

from typing import Final

import msgspec

__all__ = ["UNREADABLE"]

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Also on text that is not UTF-8, and on what lies in each other without end."""
