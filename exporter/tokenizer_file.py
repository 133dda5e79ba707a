"""The tokenizer that a bundle carries: read from a file or a folder of Hugging Face, and held against the model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge_fl.core.bundle import FILLED, TOKENIZER
from edge_fl.core.errors import BundleError, ConfigError
from edge_fl.core.inputs import Input, NamedInput
from edge_fl.data.tokenizer import open_tokenizer

__all__ = ["TokenizerFile", "check_tokenizer", "read_tokenizer"]

_CONFIG = "tokenizer_config.json"
_WRITTEN = f"{TOKENIZER} that a fast tokenizer of Hugging Face writes (save_pretrained)"
_PADS = ("pad_token", "eos_token")  # of a model without padding any token does, as its targets there are left out


@dataclass(frozen=True)
class TokenizerFile:
    """What ``tokenizer.json`` holds, the token to pad with, and how many tokens there are."""

    content: bytes
    pad: int
    tokens: int


def read_tokenizer(path: Path) -> TokenizerFile:
    """The tokenizer at ``path``: a file ``tokenizer.json``, or a folder that has one.

    The token to pad with is that of the file's own padding, or what ``tokenizer_config.json`` beside it calls
    ``pad_token``, or else ``eos_token``, or else token 0.

    Raises
    ------
    ConfigError
        When there is none, or it cannot be read.
    RuntimeMissingError
        When the library ``tokenizers`` is not installed.
    """
    file = path / TOKENIZER if path.is_dir() else path
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"The tokenizer '{file}' cannot be read ({error.strerror}): give a {_WRITTEN}, or the folder of one."
        ) from error
    try:
        tokenizer = open_tokenizer(content, f"'{file}'")
    except BundleError as error:
        raise ConfigError(f"{str(error).rstrip('.')}; give the {_WRITTEN}.") from error
    padding = tokenizer.padding
    pad = padding["pad_id"] if padding else _named_pad(tokenizer, file.parent / _CONFIG)
    return TokenizerFile(content, pad, tokenizer.get_vocab_size())


def _named_pad(tokenizer: Any, config: Path) -> int:
    try:
        named = json.loads(config.read_text())
    except (OSError, ValueError):
        return 0
    for key in _PADS:
        token = named.get(key) if isinstance(named, dict) else None
        text = token.get("content") if isinstance(token, dict) else token
        found = tokenizer.token_to_id(text) if isinstance(text, str) else None
        if found is not None:
            return int(found)
    return 0


def settled(tokenizer: TokenizerFile, length: int) -> TokenizerFile:
    """The same with truncation and padding to ``length`` written in, so that who reads the file needs no more."""
    opened = open_tokenizer(tokenizer.content, TOKENIZER)
    opened.enable_truncation(length)
    opened.enable_padding(length=length, pad_id=tokenizer.pad, pad_token=opened.id_to_token(tokenizer.pad) or "")
    return replace(tokenizer, content=opened.to_str().encode())


def check_tokenizer(tokenizer: TokenizerFile, taken: Input, inputs: Sequence[NamedInput], vocabulary: int) -> None:
    """Refuse a model that reads no texts, or has fewer tokens: ConfigError.

    ``vocabulary`` is that of an input without a name; ``inputs`` know theirs.
    """
    named = inputs or (NamedInput("input_ids", taken.shape, "int64", vocabulary),)
    other = next((each.name for each in named if each.name not in FILLED), None)
    if other is not None or "input_ids" not in {each.name for each in named}:
        raise ConfigError(
            f"A tokenizer fills {', '.join(sorted(FILLED))}, and the model takes "
            f"{', '.join(each.name for each in named)}: "
            "name its inputs so, or leave --tokenizer out."
        )
    if (
        (not inputs and taken.dtype != "int64")
        or len({each.shape for each in named}) > 1
        or len(named[0].shape) != 1
    ):
        raise ConfigError(
            "A model of texts takes int64 tokens of one length: give --input input_ids:64:int64, or --tokens."
        )
    ids = next(each for each in named if each.name == "input_ids")
    if ids.dtype != "int64" or 0 < ids.vocabulary < tokenizer.tokens:
        raise ConfigError(
            f"The tokenizer has {tokenizer.tokens} tokens, and the model's embedding {ids.vocabulary} rows: give the "
            "tokenizer that the model was made with."
        )
