"""How many tokens a model knows, among embeddings of other things."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edge_fl
from edge_fl.core.errors import DataError
from exporter.vocabulary import vocabularies_of


class Texts(nn.Module):
    """Embeddings of tokens, of their places and of a type, as BERT has them."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.tokens, self.places, self.types = nn.Embedding(50, 8), nn.Embedding(6, 8), nn.Embedding(2, 8)
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(8, classes)

    def forward(self, ids: Tensor) -> Tensor:
        places, kind = torch.arange(ids.shape[1]).expand_as(ids), torch.zeros_like(ids)
        found = self.tokens(ids.view(-1, 6)) + self.places(places) + self.types(kind)
        return self.out(self.norm(found).mean(1))  # type: ignore[no-any-return]


def test_the_vocabulary_is_that_of_the_embedding_that_reads_the_input() -> None:
    model, x = Texts().train(), torch.zeros(3, 6, dtype=torch.int64)
    before = model.norm.running_mean.clone()  # type: ignore[union-attr, operator]

    assert vocabularies_of(model, x) == {"": 50}
    assert model.training
    assert torch.equal(model.norm.running_mean, before)  # type: ignore[arg-type]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_numbers_that_forward_changes_first_are_of_no_known_vocabulary() -> None:
    class Shifted(Texts):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids % 50)

    assert not vocabularies_of(Shifted(), torch.zeros(3, 6, dtype=torch.int64))
    assert not vocabularies_of(nn.Linear(4, 2), torch.zeros(3, 4))


def test_tokens_that_the_model_lacks_are_refused_before_training(tmp_path: Path) -> None:
    bundle = edge_fl.export(Texts(), torch.randint(50, (2, 6)), output=tmp_path / "bundle")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 50, (30, 6)), np.arange(30) % 3
    assert bundle.manifest.vocabulary == 50
    edge_fl.simulate(bundle, (x, y), clients=2, fraction=1, rounds=1, local_steps=1, output=tmp_path / "run")

    x[3, 2] = 50
    with pytest.raises(DataError, match="knows 0 to 49; make them with the model's own tokenizer"):
        edge_fl.simulate(bundle, (x, y), clients=2, fraction=1, rounds=1, output=tmp_path / "refused")
