"""Texts as tokens, by the bundle's own tokenizer: the same on every device, in simulations and at the coordinator.

The library is Hugging Face's ``tokenizers``, which is imported only where a model reads texts. The file is data: it
holds no code.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.bundle import TOKENIZER, Bundle
from edge_fl.core.errors import BundleError, RuntimeMissingError, said
from edge_fl.core.inputs import NamedInput
from edge_fl.data.registry import Samples

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["check_library", "encoded", "open_tokenizer", "packed_texts", "tokenized", "unpacked_texts"]

_AT_A_TIME = 256  # texts: the library keeps all pieces of one that is cut
_ATTRIBUTES = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""What the library calls what it fills."""


def tokenized(samples: Samples, bundle: Bundle) -> Samples:
    """Texts as the inputs of the bundle's model, each cut or padded at its end.

    Where ``samples`` have no targets (``[n, 0]``), the target of each position is the token that follows.

    Raises
    ------
    RuntimeMissingError
        When the library is not installed.
    BundleError
        When the bundle's file is no tokenizer.
    """
    manifest = bundle.manifest
    assert manifest.tokenizer is not None, "texts are given to models that read them"
    inputs = manifest.inputs or (NamedInput("input_ids", manifest.input.shape, "int64", manifest.vocabulary),)
    (length,) = next(each.shape for each in inputs if each.name == "input_ids")
    ahead = samples.are_continued
    opened = _opened(bundle.root.as_posix(), manifest.files[TOKENIZER].sha256, length + ahead)
    found = encoded(opened, samples.x, length + ahead, manifest.tokenizer.pad)
    y = samples.y
    if ahead:
        ids, real = found["input_ids"], found["attention_mask"]
        y = np.where(real[:, 1:] > 0, ids[:, 1:], LEFT_OUT)
        found = {name: array[:, :length] for name, array in found.items()}
    arrays = {each.name: found[each.name] for each in inputs}
    if not manifest.inputs:
        return replace(samples, x=np.ascontiguousarray(arrays["input_ids"]), y=y)
    named = tuple(NamedInput(name, (length,), "int64") for name in arrays)
    return replace(samples, x=np.concatenate(list(arrays.values()), axis=1), y=y, inputs=named)


def packed_texts(texts: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """``[n]`` texts as bytes of UTF-8, and where each of them ends, ``[n]``: for a process that takes arrays."""
    pieces = [str(text).encode(errors="replace") for text in texts]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return np.frombuffer(b"".join(pieces), dtype=np.uint8), ends


def unpacked_texts(content: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.object_]:
    """The texts ``[n]`` that :func:`packed_texts` packed."""
    whole, texts = content.tobytes(), np.empty(len(ends), dtype=np.object_)
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        texts[i] = whole[start:end].decode()
    return texts


def open_tokenizer(content: bytes, where: str) -> "Tokenizer":
    """The tokenizer of a file ``tokenizer.json``.

    Raises
    ------
    RuntimeMissingError
        When the library is not installed.
    BundleError
        When the file is none.
    """
    check_library()
    from tokenizers import Tokenizer

    with _told(where):
        return Tokenizer.from_buffer(content)


def check_library() -> None:
    """Raise RuntimeMissingError where the library is not installed."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a device says itself how many threads it has
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise RuntimeMissingError(
            "Texts are read by the library tokenizers, which is not installed: pip install 'edge-fl[text]'."
        ) from error


@lru_cache(maxsize=2)
def _opened(root: str, digest: str, length: int) -> "Tokenizer":
    """One that was read before is not read again; ``digest`` tells the files of a folder that is written anew apart.

    Threads share it, so nobody changes it from here on.
    """
    del digest
    path = Path(root) / TOKENIZER
    tokenizer = open_tokenizer(path.read_bytes(), f"'{path}'")
    with _told(f"'{path}'"):
        tokenizer.no_padding()
        tokenizer.enable_truncation(length)
    return tokenizer


def encoded(tokenizer: "Tokenizer", texts: NDArray[Any], length: int, pad: int) -> dict[str, NDArray[np.int64]]:
    """``[n, length]`` of each of :data:`edge_fl.core.bundle.FILLED`; raises BundleError where the tokenizer fails.

    ``tokenizer`` truncates to ``length`` already, or texts are cut here.
    """
    found = {name: np.zeros((len(texts), length), dtype=np.int64) for name in _ATTRIBUTES}
    found["input_ids"][:] = pad
    for start in range(0, len(texts), _AT_A_TIME):
        with _told("The bundle's tokenizer"):
            encodings = tokenizer.encode_batch(list(texts[start : start + _AT_A_TIME]))
        for row, encoding in enumerate(encodings, start):
            for name, attribute in _ATTRIBUTES.items():
                values = getattr(encoding, attribute)[:length]  # a template may add more than there is room for
                found[name][row, : len(values)] = values
    return found


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Tell whatever the library raises in one sentence: BundleError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust's is no Exception
        raise BundleError(f"{where} cannot be used as a tokenizer: {said(error)}.") from error
