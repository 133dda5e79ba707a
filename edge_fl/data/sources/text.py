"""A text file: ``text:notes.txt?vocabulary=shakespeare``, as sequences of tokens and of those that follow them.

Without a vocabulary each line is a text of its own, which the bundle's tokenizer reads.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.data.registry import Samples, dataset_info, text_encoder
from edge_fl.data.sequences import cut_sequences, decode_text
from edge_fl.data.sources.base import FileSource, read_content, split_argument

__all__ = ["SOURCE", "TextSource"]

_BYTES, _BYTES_LENGTH = "bytes", 80


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How text becomes tokens.

    Parameters
    ----------
    vocabulary
        A data set of texts, whose tokens are used, or ``bytes``: 256 of them, those of UTF-8. None: each line is a
        sample, and the bundle has a tokenizer.
    length
        Tokens a sequence; as many as in the data set where it is 0, and 80 for bytes. Lines are as long as the model
        takes them.
    """

    vocabulary: str = ""
    length: int = 0


class TextSource(FileSource):
    """One text; what is left at its end, a sequence at most, is left out."""

    def __init__(self, argument: str) -> None:
        path, options = split_argument(argument, TextOptions)
        super().__init__(path)
        if options.length < 0:
            raise DataError(f"A sequence cannot have {options.length} tokens.")
        own = _BYTES_LENGTH
        self._encode: Callable[[str], NDArray[np.int64]] | None = None if not options.vocabulary else _utf8
        if not options.vocabulary and options.length:
            raise DataError("Lines are as long as the model takes them: leave length= out, or give a vocabulary=.")
        if options.vocabulary not in ("", _BYTES):
            self._encode = text_encoder(options.vocabulary)
            own = dataset_info(options.vocabulary).input_shape[0]
        self._length = options.length or own

    def files(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> Samples:
        """Its sequences, in order."""
        text = decode_text(read_content(self.path), str(self.path))
        if self._encode is None:
            lines = np.array([line.strip() for line in text.splitlines() if line.strip()], dtype=np.object_)
            return Samples(lines, np.empty((len(lines), 0), dtype=np.int64))
        tokens = self._encode(text)
        if len(tokens) <= self._length:
            raise DataError(
                f"'{self.path}' has {len(tokens)} tokens, and a sequence of {self._length} needs one more than that."
            )
        return cut_sequences(tokens, self._length)


def _utf8(text: str) -> NDArray[np.int64]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


SOURCE = TextSource
