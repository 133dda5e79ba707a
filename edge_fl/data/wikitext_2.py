"""WikiText-2, word by word: sequences of 35 words and of those that follow them (Merity et al., 2016; CC BY-SA).

The vocabulary is every word of the three splits and the end of a line, 33,278 in all, most frequent first (ties by
their letters), so it does not depend on the order of the articles. A folder may hold train.txt.gz, valid.txt and
test.txt instead of the published archive; there the training articles come in another order.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_fl.data.files import RemoteFile, read_members
from edge_fl.data.registry import Dataset, DatasetInfo
from edge_fl.data.sequences import cut_sequences, decode_text

__all__ = ["INFO", "encoder", "load", "texts", "word_tokens"]

_LENGTH = 35
_END_OF_LINE = "<eos>"
_UNKNOWN = "<unk>"  # stands in the articles already

INFO = DatasetInfo(
    "wikitext-2",
    input_shape=(_LENGTH,),
    classes=33_278,
    input_dtype="int64",
    target_shape=(_LENGTH,),
    loss="sequence_cross_entropy",
    top=3,
)

_PUBLISHED = RemoteFile(
    "wikitext-2/wikitext-2-v1.zip",
    "https://wikitext.smerity.com/wikitext-2-v1.zip",
    "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
)
_REPACKED = tuple(
    RemoteFile(f"wikitext-2/{name}", _PUBLISHED.url, sha256)
    for name, sha256 in {
        "train.txt.gz": "0ab79876cf89ff5fea1f44c00e00acba49493ec16ea7b0729eddb61162c62644",
        "valid.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test.txt": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    }.items()
)
_SPLITS = ("train", "valid", "test")  # in "wiki.train.tokens" as in "train.txt"


def load(folder: Path | None) -> Dataset:
    """Load the data set from ``folder``, else by download; raises DataError when it cannot be had."""
    train, _, test = word_tokens(texts(folder))
    return Dataset(INFO, cut_sequences(train, _LENGTH), cut_sequences(test, _LENGTH))


def encoder(folder: Path | None) -> Callable[[str], NDArray[np.int64]]:
    """What makes a text the tokens of its words and ends of lines; raises as :func:`load`."""
    ids = _numbered([_words(text) for text in texts(folder)])
    return lambda text: _tokens(_words(text), ids)


def texts(folder: Path | None) -> list[str]:
    """The training, validation and test articles; raises as :func:`load`."""
    found = {}
    for name, content in read_members([_PUBLISHED], _REPACKED, folder):
        found.update({split: decode_text(content, f"wikitext-2/{name}") for split in _SPLITS if split in name})
    return [found[split] for split in _SPLITS]


def word_tokens(texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """Number the words of some texts by one vocabulary.

    Returns
    -------
    For each text ``[n]``: its words and an end of line for each line, by their rank among all words of all texts.
    """
    streams = [_words(text) for text in texts]
    ids = _numbered(streams)
    return [_tokens(stream, ids) for stream in streams]


def _numbered(streams: Sequence[Sequence[str]]) -> dict[str, int]:
    counts = Counter(word for stream in streams for word in stream)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: i for i, word in enumerate(ranked)}


def _tokens(words: Sequence[str], ids: Mapping[str, int]) -> NDArray[np.int64]:
    unknown = ids.get(_UNKNOWN, -1)  # -1 where no word is unknown: the vocabulary is that of the words themselves
    return np.fromiter((ids.get(word, unknown) for word in words), dtype=np.int64, count=len(words))


def _words(text: str) -> list[str]:
    lines = text.removesuffix("\n").split("\n")
    return [word for line in lines for word in (*line.split(), _END_OF_LINE)]
