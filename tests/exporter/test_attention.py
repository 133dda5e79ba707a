"""Attention as the exporter runs it, beside torch's own; and which heads of whose attention are units."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from exporter.attention import attend
from exporter.derive import derive
from exporter.heads import sibling_heads
from exporter.multihead import MultiheadAttention, can_replace
from tests.exporter.test_sub_networks import Vit

SHAPE = (2, 4, 5, 8)  # batch, heads, length, features


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.randn(5, 5)},
        {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()},
        {"enable_gqa": True},
    ],
)
def test_written_out_it_is_torchs(options: dict[str, object]) -> None:
    query, (key, value) = torch.randn(SHAPE), torch.randn(2, 2, 2 if "enable_gqa" in options else 4, 5, 8)
    expected = functional.scaled_dot_product_attention(query, key, value, **options)  # type: ignore[arg-type]
    assert torch.allclose(attend(query, key, value, **options), expected, atol=1e-6)  # type: ignore[arg-type]


def test_a_sample_that_sees_nothing_is_no_nan() -> None:
    mask = torch.zeros(5, 5, dtype=torch.bool)
    assert attend(*torch.randn(3, *SHAPE), attn_mask=mask).isfinite().all()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("masked", ["no", "padding", "bool", "float", "each head"])
def test_multi_head_attention_is_torchs(masked: str, *, batch_first: bool, apart: bool) -> None:
    torch.manual_seed(0)
    kinds = {"kdim": 5, "vdim": 7} if apart else {}
    theirs = nn.MultiheadAttention(12, 3, batch_first=batch_first, **kinds)  # type: ignore[arg-type]
    assert can_replace(theirs)
    ours = MultiheadAttention(theirs)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    query, key, value = (
        torch.randn(2, 4, 12),
        torch.randn(2, 6, 5 if apart else 12),
        torch.randn(2, 6, 7 if apart else 12),
    )
    if not batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    masks: dict[str, dict[str, Tensor]] = {
        "no": {},
        "padding": {"key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])},
        "bool": {"attn_mask": torch.ones(4, 6, dtype=torch.bool).triu(1)},
        "float": {"attn_mask": torch.randn(4, 6)},
        "each head": {"attn_mask": torch.randn(6, 4, 6)},
    }
    for average in (True, False):
        found = ours(query, key, value, average_attn_weights=average, **masks[masked])
        expected = theirs(query, key, value, average_attn_weights=average, **masks[masked])
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, atol=1e-6)
    assert ours(query, key, value, need_weights=False)[1] is None


def test_multi_head_attention_without_a_batch() -> None:
    theirs, x = nn.MultiheadAttention(12, 3), torch.randn(5, 12)
    for one, other in zip(MultiheadAttention(theirs)(x, x, x), theirs(x, x, x), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


class Encoder(nn.Module):
    """torch's own encoder, whose norms come after."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
        self.embedding, self.encoder = nn.Embedding(30, 12), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1))  # type: ignore[no-any-return]


class Masked(Encoder):
    """torch's tutorial: a mask whose values torch looks into."""

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.encoder(self.embedding(x), mask).mean(1))  # type: ignore[no-any-return]


class Rotary(nn.Module):
    """Two query heads to each head of keys, and positions that rotate halves, as Llama has them."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.Module()
        sizes = {"q_proj": (16, 32), "k_proj": (16, 16), "v_proj": (16, 16), "o_proj": (32, 16)}
        for name, (inputs, outputs) in sizes.items():
            self.self_attn.add_module(name, nn.Linear(inputs, outputs, bias=False))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        attention = self.self_attn
        q, k, v = (
            layer(x).view(*x.shape[:2], -1, 8).transpose(1, 2)
            for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = rotated(q), rotated(k)
        k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(attention.o_proj(mixed.transpose(1, 2).flatten(2)).mean(1))  # type: ignore[no-any-return, operator]


class Conv1D(nn.Module):
    """A linear layer of GPT-2's, as Hugging Face has it."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) / 4), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class Thirds(nn.Module):
    """GPT-2's attention: queries, keys and values lie one after another in one layer of weights [inputs, outputs]."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Module()
        self.attn.c_attn, self.attn.c_proj = Conv1D(48, 16), Conv1D(16, 16)
        self.head = nn.Linear(16, 4)

    def attend(self, x: Tensor) -> Tensor:
        attention = self.attn
        together = attention.c_attn(x)  # type: ignore[operator]
        parts = together.split(together.shape[-1] // 3, 2)
        q, k, v = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attention.c_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[operator, no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attend(x).mean(1))  # type: ignore[no-any-return]


class Interleaved(nn.Module):
    """GPT-NeoX's attention: the query, key and value of a head lie side by side in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Module()
        self.attention.query_key_value, self.attention.dense = nn.Linear(16, 48), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        attention = self.attention
        heads = attention.query_key_value(x).view(*x.shape[:2], -1, 12).transpose(1, 2)  # type: ignore[operator]
        q, k, v = heads.chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        return self.head(attention.dense(mixed.transpose(1, 2).flatten(2)).mean(1))  # type: ignore[no-any-return, operator]


def rotated(x: Tensor) -> Tensor:
    angle, half = torch.arange(x.shape[-2])[:, None] / torch.arange(1, x.shape[-1] + 1), x.shape[-1] // 2
    return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angle.sin()


@pytest.mark.parametrize(
    ("model", "x", "expected"),
    [
        *(
            (
                model,
                torch.randint(30, (3, 6)),
                {
                    f"encoder.layers.{n}.{what}": size
                    for n in (0, 1)
                    for what, size in (("self_attn.heads", 3), ("linear1", 20))
                },
            )
            for model in (Encoder, Masked)
        ),
        (
            Vit,
            torch.randn(3, 1, 8, 8),
            {f"layers.{n}.{what}": size for n in (0, 1) for what, size in (("attn.qkv", 4), ("fc1", 24))},
        ),
        (Rotary, torch.randn(3, 6, 16), {"self_attn.heads": 2, "self_attn.o_proj": 16}),
        (Thirds, torch.randn(3, 6, 16), {"attn.heads": 4, "attn.c_proj": 16}),
        pytest.param(
            Interleaved,
            torch.randn(3, 6, 16),
            {"attention.heads": 4, "attention.dense": 16},
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_whole_heads_are_units(model: type[nn.Module], x: Tensor, expected: dict[str, int]) -> None:
    torch.manual_seed(0)
    found = derive(model(), x)
    assert dict(found.layout.sizes) == expected
    assert not any(name.endswith(("qkv", "q_proj", "k_proj", "v_proj", "self_attn")) for name in found.scaled)
    assert all(what not in found.dense for what in ("self_attn.q_proj", "self_attn.v_proj", "layers.0.attn.qkv"))


def test_a_layer_whose_weight_is_computed_is_no_head() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    model.add_module("dense", nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    assert list(sibling_heads(model, [2])) == []
