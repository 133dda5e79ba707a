"""Text as sequences of tokens: what the language data sets share."""

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.data.registry import Samples

__all__ = ["cut_sequences", "decode_text"]


def cut_sequences(tokens: NDArray[np.int64], length: int) -> Samples:
    """Cut a stream into sequences that do not overlap, each position's target being the token that follows it.

    Parameters
    ----------
    tokens
        ``[n]``.
    length
        Positions a sequence (T). What is left at the end, T tokens at most, is left out.

    Returns
    -------
    Samples of ``x`` and ``y`` ``[(n - 1) // T, T]``.
    """
    count = max(len(tokens) - 1, 0) // length
    x = tokens[: count * length].reshape(count, length)
    return Samples(x, tokens[1 : count * length + 1].reshape(count, length))


def decode_text(content: bytes, where: str) -> str:
    """Decode UTF-8; raises DataError, naming the file ``where``, when it is none or empty."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"'{where}' is no UTF-8 text: byte {error.start} cannot be read.") from error
    if not text.strip():
        raise DataError(f"'{where}' holds no text.")
    return text
