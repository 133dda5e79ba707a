"""A fleet whose devices give texts: trained, scored and predicted with by the tokenizer that the bundle carries."""

import csv
import threading
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn

import edge_fl
from broker.embedded import EmbeddedBroker
from edge_fl.core.errors import ConfigError

WORDS = ["<unk>", "warm", "cold", "soup", "and", "tea"]
CLASSES = ["good", "bad"]


class Reviews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(6, 8), nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        real = attention_mask[..., None].float()
        return self.out((self.tokens(input_ids) * real).sum(1) / real.sum(1))  # type: ignore[no-any-return]


def table(path: Path, rows: list[tuple[str, str]]) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("review", "stars"), *rows])
    classes = path.with_name("classes.txt")
    classes.write_text("\n".join(CLASSES) + "\n")
    return f"csv:{path}?text=review&label=stars&classes={classes}"


def test_devices_learn_from_texts_and_predict_from_them(tmp_path: Path) -> None:
    tokenizer = Library(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    torch.manual_seed(0)
    example = {name: torch.ones(2, 4, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    bundle = edge_fl.export(
        Reviews(), example, tokenizer=tmp_path, class_names=CLASSES, output=tmp_path / "b", runtimes=["onnx"]
    )
    rows = [("warm soup", "good"), ("cold tea and soup", "bad"), ("tea and warm tea", "good"), ("cold", "bad")] * 8
    test = table(tmp_path / "test.csv", [("warm tea", "good"), ("cold soup", "bad")])
    with EmbeddedBroker(port=0) as broker:
        devices = [
            edge_fl.Device(
                str(broker.address),
                table(tmp_path / f"{k}.csv", rows[k:]),
                id=f"d{k}",
                state=tmp_path / f"state-{k}",
                once=True,
                keep_model=True,
            )
            for k in range(2)
        ]
        threads = [threading.Thread(target=device.run, daemon=True) for device in devices]
        for thread in threads:
            thread.start()
        run = edge_fl.serve(
            bundle,
            broker=str(broker.address),
            test_data=test,
            rounds=4,
            clients_per_round=2,
            min_clients=2,
            local_steps=20,
            batch=10,
            lr=1.0,
            output=tmp_path / "run",
        )
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert run.metrics[-1].scores == {"accuracy": 1.0}
    outputs = devices[0].predict(["warm and warm soup", "cold cold tea tea tea"])
    assert outputs.argmax(1).tolist() == [0, 1]
    named = devices[0].predict({"input_ids": [[1, 4, 1, 3]], "attention_mask": [[1, 1, 1, 1]]})
    assert abs(named - outputs[:1]).max() < 1e-6
    for device in devices:
        device.close()

    for _ in range(2):
        edge_fl.extract(run, tmp_path / "out")
    delivered, mine = (
        Library.from_file(str(folder / "tokenizer.json")) for folder in (tmp_path / "out", tmp_path)
    )
    assert delivered.padding is not None
    with pytest.raises(ConfigError, match="is another tokenizer than the model's: remove the file"):
        edge_fl.extract(run, tmp_path / "model.onnx", test_data="csv:none.csv")  # before it is scored
    assert Library.from_file(str(tmp_path / "tokenizer.json")).padding == mine.padding is None
    assert not (tmp_path / "model.onnx").exists()
