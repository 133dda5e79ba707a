"""Which tokenizers a bundle takes, and what a model of texts must be."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn

import edge_fl
from edge_fl.core.errors import ConfigError
from exporter.tokenizer_file import read_tokenizer

WORDS = {"<unk>": 0, "warm": 1, "cold": 2, "soup": 3, "<end>": 4}


class Classifier(nn.Module):
    def __init__(self, tokens: int = 5) -> None:
        super().__init__()
        self.tokens, self.out = (
            nn.Embedding(tokens, 8),
            nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2)),
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        real = attention_mask[..., None].float()
        return self.out((self.tokens(input_ids) * real).sum(1) / real.sum(1).clamp(min=1))  # type: ignore[no-any-return]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = Library(WordLevel(WORDS, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize(
    ("config", "pad"),
    [
        (None, 0),
        ("{broken", 0),
        ({"pad_token": None, "eos_token": "<end>"}, 4),
        ({"pad_token": {"content": "soup"}, "eos_token": "<end>"}, 3),
        ({"pad_token": "none of them"}, 0),
        ([], 0),
    ],
)
def test_what_a_folder_calls_padding_is_padded_with(folder: Path, config: object, pad: int) -> None:
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / "tokenizer_config.json").write_text(text)
    found = read_tokenizer(folder)
    assert (found.pad, found.tokens) == (pad, 5)
    assert read_tokenizer(folder / "tokenizer.json") == found


def test_the_files_own_padding_comes_first(folder: Path) -> None:
    made = Library.from_file(str(folder / "tokenizer.json"))
    made.enable_padding(pad_id=2, pad_token="cold")
    made.save(str(folder / "tokenizer.json"))
    assert read_tokenizer(folder).pad == 2


def test_a_model_of_texts_learns_from_texts(folder: Path) -> None:
    torch.manual_seed(0)
    example = {name: torch.ones(2, 4, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    bundle = edge_fl.export(Classifier(), example, tokenizer=folder, output=folder / "b")
    carried = Library.from_file(str(bundle.root / "tokenizer.json"))  # which needs no more to be read with
    assert [each.ids for each in carried.encode_batch(["soup", "warm " * 9])] == [[3, 0, 0, 0], [1, 1, 1, 1]]
    texts = ["warm soup", "cold soup", "soup warm warm", "soup cold"] * 10
    run = edge_fl.simulate(
        bundle, (texts, [0, 1, 0, 1] * 10), clients=2, fraction=1, rounds=6, local_steps=20, batch=10, lr=1.0,
        test_data=(["warm", "cold"] * 2, [0, 1] * 2), output=folder / "run",
    )  # fmt: skip
    assert run.metrics[-1].scores == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("model", "example", "says"),
    [
        (Classifier(3), ("input_ids", "attention_mask"), "has 5 tokens, and the model's embedding 3 rows"),
        (nn.Linear(4, 2), None, "takes int64 tokens of one length"),
    ],
)
def test_a_model_that_reads_no_such_texts_is_refused(
    folder: Path, model: nn.Module, example: tuple[str, ...] | None, says: str
) -> None:
    given = torch.zeros(2, 4) if example is None else {n: torch.ones(2, 4, dtype=torch.int64) for n in example}
    with pytest.raises(ConfigError, match=says):
        edge_fl.export(model, given, tokenizer=folder, output=folder / "b")
    assert not (folder / "b").exists()


def test_other_inputs_are_refused(folder: Path) -> None:
    class Other(Classifier):
        def forward(self, words: Tensor, attention_mask: Tensor) -> Tensor:
            return super().forward(words, attention_mask)

    example = {name: torch.ones(2, 4, dtype=torch.int64) for name in ("words", "attention_mask")}
    with pytest.raises(
        ConfigError, match="fills attention_mask, input_ids, token_type_ids, and the model takes words"
    ):
        edge_fl.export(Other(), example, tokenizer=folder, output=folder / "b")


@pytest.mark.parametrize(("content", "says"), [(None, "cannot be read"), (b"{}", "cannot be used as a tokenizer")])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read_tokenizer(tmp_path)
