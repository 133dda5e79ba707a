"""What programs of kept units compute, held against the same models built smaller and trained by a plain torch loop."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor, nn
from torch.nn import functional

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.runtimes.base import open_runtime
from exporter.api import export
from exporter.fine_tuning import train_only

STEPS, BATCH, LR = 3, 4, 0.1
RUNTIMES = ["onnx", "executorch", "torch_eager"]
LIMIT = 1e-5


class Attention(nn.Module):
    """Attention with q, k and v in one layer, as timm writes it: its number of heads is an attribute."""

    def __init__(self, features: int, heads: int, *, head_dim: int = 8, causal: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.causal = heads, head_dim, causal
        self.qkv = nn.Linear(features, 3 * heads * head_dim)
        self.proj = nn.Linear(heads * head_dim, features)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        joined = functional.scaled_dot_product_attention(*qkv.unbind(0), is_causal=self.causal)
        return self.proj(joined.transpose(1, 2).reshape(b, n, self.num_heads * self.head_dim))


class Layer(nn.Module):
    def __init__(self, features: int, heads: int, hidden: int, *, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.attn = Attention(features, heads, causal=causal)
        self.fc1, self.fc2 = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    """Patches of an image of 8 x 8, and a buffer of positions."""

    def __init__(self, heads: int = 4, hidden: int = 24) -> None:
        super().__init__()
        self.patches = nn.Linear(4, 16)
        self.register_buffer("positions", torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(1)))
        self.layers = nn.ModuleList(Layer(16, heads, hidden) for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], 4, 2, 4, 2).transpose(2, 3).flatten(3).flatten(1, 2)
        x = self.patches(x) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Tokens to tokens, each of which sees those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(Layer(16, 2, 24, causal=True) for _ in range(2))
        self.head = nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


class Cnn(nn.Module):
    """A backbone with BatchNorm, and a head of two layers."""

    def __init__(self, hidden: int = 12) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.fc1, self.fc2 = nn.Linear(6 * 16, hidden), nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


class Case(NamedTuple):
    """A model, the same built as small as ``width`` leaves it, and data for both."""

    model: nn.Module
    smaller: Callable[[], nn.Module]
    width: int
    x: Tensor
    y: Tensor
    options: Mapping[str, Any]


def vit() -> Case:
    x, y = torch.randn(STEPS, BATCH, 1, 8, 8), torch.randint(5, (STEPS, BATCH))
    return Case(Vit(), lambda: Vit(heads=2, hidden=12), 500, x, y, {})


def gpt() -> Case:
    adapters = [["lora:qkv:r=8:alpha=16"], ["lora:qkv:r=2:alpha=4"]]  # a gain of 2 at both ranks
    model, tokens = train_only(Gpt(), adapters[0]), torch.randint(20, (2, STEPS, BATCH, 6))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # a zero would hide what is done to A
            nn.init.normal_(parameter, std=0.2)
    loss = {"loss": "sequence_cross_entropy"}
    return Case(model, lambda: train_only(Gpt(), adapters[1]), 250, tokens[0], tokens[1], loss)


def cnn() -> Case:
    model = Cnn()
    model.norm.running_mean.normal_()  # type: ignore[union-attr, operator]
    model.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    x, y = torch.randn(STEPS, BATCH, 1, 8, 8), torch.randint(5, (STEPS, BATCH))

    def smaller() -> nn.Module:
        return train_only(Cnn(hidden=6), ["fc*"])

    return Case(train_only(model, ["fc*"]), smaller, 500, x, y, {})


def _cases() -> Iterator[ParameterSet]:
    for build, runtime in itertools.product((vit, gpt, cnn), RUNTIMES):
        first = (build, runtime) in ((gpt, "onnx"), (cnn, "onnx"))
        yield pytest.param(build, runtime, marks=() if first else pytest.mark.matrix)


@pytest.mark.parametrize(("build", "runtime"), list(_cases()))
def test_kept_units_train_as_a_smaller_model(build: Callable[[], Case], runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = build()
    bundle = export(
        case.model,
        case.x[0],
        runtimes=[runtime],
        output=tmp_path,
        widths=(1.0, case.width / 1000),
        batch=BATCH,
        **case.options,
    )
    pattern = every_so_many(bundle, case.width)
    before = Selection.of(pattern, "units").gather(bundle.weights())
    kept, losses = trained(bundle, runtime, pattern, case)
    small, expected = in_torch(case, before, bundle, pattern)
    assert losses == pytest.approx(expected, rel=LIMIT)
    for name, array in kept.items():
        assert np.abs(array - small[name]).max() <= LIMIT * max(1, np.abs(small[name]).max()), name
        assert np.abs(array - before[name]).max() > 1e-6 or name.endswith("qkv.bias"), name


def every_so_many(bundle: Bundle, width: int) -> Pattern:
    """Units from all over each block, as many as ``width`` leaves."""
    counts = Pattern.prefix(bundle.layout, width).counts
    masks = [np.arange(block.size) % (block.size // counts[block.name]) == 0 for block in bundle.layout.blocks]
    return Pattern(bundle.layout, np.concatenate(masks))


def trained(bundle: Bundle, runtime: str, pattern: Pattern, case: Case) -> tuple[dict[str, Any], list[float]]:
    program = open_runtime(runtime, bundle).train_step(pattern, BATCH)
    kept, losses = Selection.of(pattern, "units").gather(bundle.weights()), []
    for x, y in zip(case.x, case.y, strict=True):
        done = program(kept, Batch(x.numpy(), y.numpy(), np.ones(BATCH, dtype=np.float32)), lr=LR)
        kept = done.tensors
        losses.append(done.loss)
    return kept, losses


def in_torch(
    case: Case, before: Mapping[str, Any], bundle: Bundle, pattern: Pattern
) -> tuple[dict[str, Any], list[float]]:
    """The smaller model after the same steps, and the loss before each."""
    model = case.smaller().train()
    tensors = {name: torch.from_numpy(array.copy()) for name, array in before.items()}
    tensors |= {name: torch.from_numpy(array.copy()) for name, array in bundle.frozen.kept(pattern).items()}
    found = model.load_state_dict(tensors, strict=False)
    assert not found.unexpected_keys
    assert all("num_batches" in name for name in found.missing_keys)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # its parameters are frozen
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], LR)
    losses = []
    for x, y in zip(case.x, case.y, strict=True):
        optimizer.zero_grad()
        outputs = model(x)
        loss = functional.cross_entropy(outputs.flatten(0, -2), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}, losses
