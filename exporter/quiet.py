"""Keeping the compilers' chatter off the user's terminal; whether a program is right, parity decides."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and log records up to WARNING."""
    # Torch's handler of structured traces leaves at the first record that reaches it, unless TORCH_TRACE asks for them.
    # While it stays, torch writes a stack for each symbol and each tensor: 5 % of an export.
    logging.getLogger("torch.__trace").debug("", extra={"metadata": {}, "payload": None})
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
