"""Models that no zoo holds, each with one trait that a layout must get right."""

import torch
from torch import Tensor, nn


class Concatenation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 4)
        self.joined, self.out = nn.Linear(9, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.left(x).relu(), self.right(x).relu()], dim=1)
        out: Tensor = self.out(self.joined(both).relu())
        return out


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.back = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        out: Tensor = self.out((h + self.back(self.inner(h).relu())).relu())
        return out


class BothSigns(nn.Module):
    """Concatenated ReLU (Shang et al., 2016): each unit owns two columns of the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 5), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        out: Tensor = self.out(torch.cat([h.relu(), (-h).relu()], dim=1))
        return out


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.b(self.a(x).relu()).relu())
        return out


class InputResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x + self.hidden(x).relu())
        return out


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x)
        return out if out.sum() > 0 else -out


class BatchMixing(nn.Module):
    """Centres a batch on its mean, so that padding changes the other samples."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.hidden(x - x.mean(dim=0)).relu())
        return out


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x + 0.1 * torch.randn_like(x))
        return out


class Recurrent(nn.Module):
    """Two steps of three features each."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.RNN(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x.reshape(-1, 2, 3))
        out: Tensor = self.out(states[:, -1])
        return out


class Attention(nn.Module):
    """Two tokens of three features each, which linear layers take as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, 2, 3)
        weight = torch.softmax(self.query(tokens) @ self.key(tokens).transpose(1, 2), dim=-1)
        out: Tensor = self.out((weight @ self.value(tokens)).flatten(1))
        return out


def activations() -> nn.Module:
    """Linear layers, one without bias, between all sorts of activations; the blocks of 0 and 9 must stay dense."""
    return nn.Sequential(
        *[nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU()],
        *[nn.Linear(8, 7, bias=False), nn.Tanh()],
        *[nn.Linear(7, 9), nn.SiLU()],
        *[nn.Linear(9, 5), nn.LeakyReLU(0.1)],
        *[nn.Linear(5, 6), nn.Sigmoid()],
        *[nn.Linear(6, 4), nn.ELU()],
        nn.Linear(4, 3),
    )
