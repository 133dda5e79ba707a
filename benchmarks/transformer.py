"""Transformers written out in torch alone, for benchmarks that need no other library."""

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Decoder", "VisionTransformer"]


class _Attention(nn.Module):
    """Heads of ``size`` features; how many there are is what the weights say."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.size, self.causal = width // heads, causal
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, width]`` to the same."""
        query, key, value = (
            layer(x).unflatten(2, (-1, self.size)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    """Attention and two dense layers, each behind its normalisation and beside a residual."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), _Attention(width, heads, causal=causal)
        self.between, self.fc1, self.fc2 = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, width]`` to the same."""
        x = x + self.attention(self.before(x))
        return x + self.fc2(functional.gelu(self.fc1(self.between(x))))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """64 x 64 pixels in colour, as 64 patches."""

    def __init__(self, *, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.layers = nn.Sequential(*(_Layer(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 3, 64, 64]`` to ``[B, classes]``."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.layers(tokens)).mean(1))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The next token after each of at most ``length``."""

    def __init__(self, *, width: int, heads: int, depth: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.layers = nn.Sequential(*(_Layer(width, heads, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T]`` tokens to ``[B, T, vocabulary]``."""
        tokens = self.words(x) + self.positions[:, : x.shape[1]]
        return self.head(self.norm(self.layers(tokens)))  # type: ignore[no-any-return]
