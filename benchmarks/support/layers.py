"""A tiny model around each layer and operation that the table of support names."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.support.case import CLASSES, SupportCase
from edge_fl.core.bundle import BatchNormPolicy
from edge_fl.core.inputs import Input

__all__ = ["LAYERS"]

_SIGNAL = Input((2, 8), "float32")
_IMAGE = Input((2, 8, 8), "float32")
_SERIES = Input((4, 3), "float32")
_TOKENS = Input((4,), "int64")


class _Of(nn.Module):
    """Layers, and a function that says how the input goes through them."""

    def __init__(self, forward: Callable[["_Of", Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self._through = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def of(self, name: str, *inputs: Tensor) -> Tensor:
        """What one layer makes of its inputs; of a recurrent one, the outputs without the last state."""
        outputs = self.get_submodule(name)(*inputs)
        return outputs[0] if isinstance(outputs, tuple) else outputs  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self._through(self, x)


def _dense(*layers: nn.Module, width: int = 8) -> nn.Module:
    """``layers`` between two linear ones of ``width`` units, and an output layer."""
    return nn.Sequential(nn.Linear(6, width), *layers, nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, CLASSES))


def _signals(*layers: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def _images(*layers: nn.Module, channels: int, places: int | None = None) -> nn.Module:
    """With the mean over all places before the output layer, or all ``places`` flattened."""
    pooling = [nn.AdaptiveAvgPool2d(1)] if places is None else []
    return nn.Sequential(*layers, *pooling, nn.Flatten(), nn.Linear(channels * (places or 1), CLASSES))


def _normalised(*layers: nn.Module) -> nn.Module:
    return _images(nn.Conv2d(2, 8, 3), *layers, nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(), channels=6)


def _recurrent(layer: nn.Module, features: int) -> nn.Module:
    """The last output of a recurrent layer, and an output layer."""
    return _Of(lambda m, x: m.of("out", m.of("layer", x)[:, -1]), layer=layer, out=nn.Linear(features, CLASSES))


def _cell(cell: nn.Module) -> nn.Module:
    """A cell called once for each of four steps, by the forward pass itself."""

    def forward(m: _Of, x: Tensor) -> Tensor:
        state: object = None
        for step in range(4):
            state = m.get_submodule("cell")(x[:, step], state)
        return m.of("out", state[0] if isinstance(state, tuple) else state)  # type: ignore[arg-type]

    return _Of(forward, cell=cell, out=nn.Linear(5, CLASSES))


def _embedding() -> nn.Module:
    return _Of(
        lambda m, x: m.of("out", m.of("words", x).flatten(1)),
        words=nn.Embedding(CLASSES, 6),
        out=nn.Linear(4 * 6, CLASSES),
    )


def _residual() -> nn.Module:
    def forward(m: _Of, x: Tensor) -> Tensor:
        h = m.of("stem", x).relu()
        return m.of("out", (h + m.of("back", m.of("inner", h).relu())).relu())

    return _Of(
        forward, stem=nn.Linear(6, 8), inner=nn.Linear(8, 5), back=nn.Linear(5, 8), out=nn.Linear(8, CLASSES)
    )


def _concatenation() -> nn.Module:
    def forward(m: _Of, x: Tensor) -> Tensor:
        both = torch.cat([m.of("left", x).relu(), m.of("right", x).relu()], dim=1)
        return m.of("out", m.of("joined", both).relu())

    return _Of(
        forward,
        left=nn.Linear(6, 5),
        right=nn.Linear(6, 4),
        joined=nn.Linear(9, 7),
        out=nn.Linear(7, CLASSES),
    )


def _attention(fused: bool) -> nn.Module:
    """One head over four places of three features."""

    def forward(m: _Of, x: Tensor) -> Tensor:
        query, key, value = (m.of(name, x) for name in ("query", "key", "value"))
        if fused:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        else:
            mixed = torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value
        return m.of("out", mixed.flatten(1))

    return _Of(
        forward,
        query=nn.Linear(3, 4),
        key=nn.Linear(3, 4),
        value=nn.Linear(3, 4),
        out=nn.Linear(16, CLASSES),
    )


def _multihead() -> nn.Module:
    return _Of(
        lambda m, x: m.of("out", m.of("attention", x, x, x).flatten(1)),
        attention=nn.MultiheadAttention(3, 1, batch_first=True),
        out=nn.Linear(12, CLASSES),
    )


def _mean_of_places() -> nn.Module:
    return _Of(
        lambda m, x: m.of("out", m.of("conv", x).relu().mean(dim=(2, 3))),
        conv=nn.Conv2d(2, 4, 3),
        out=nn.Linear(4, CLASSES),
    )


_LAYERS = (
    SupportCase("Linear", lambda: _dense(nn.ReLU())),
    SupportCase("Linear without bias", lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, CLASSES))),
    SupportCase(
        "Linear over a sequence",
        lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(20, CLASSES)),
        _SERIES,
    ),
    SupportCase("Embedding", _embedding, _TOKENS),
    SupportCase("Conv1d", lambda: _signals(nn.Conv1d(2, 4, 3, padding=1), channels=4), _SIGNAL),
    SupportCase("Conv1d, stride 2", lambda: _signals(nn.Conv1d(2, 4, 3, 2), channels=4), _SIGNAL),
    SupportCase("Conv1d, dilation 2", lambda: _signals(nn.Conv1d(2, 4, 3, dilation=2), channels=4), _SIGNAL),
    SupportCase(
        "Conv1d, depthwise",
        lambda: _signals(nn.Conv1d(2, 4, 1), nn.Conv1d(4, 4, 3, groups=4), channels=4),
        _SIGNAL,
    ),
    SupportCase("Conv2d", lambda: _images(nn.Conv2d(2, 4, 3), nn.ReLU(), channels=4, places=36), _IMAGE),
    SupportCase("Conv2d, padding", lambda: _images(nn.Conv2d(2, 4, 5, padding=2), nn.ReLU(), channels=4), _IMAGE),
    SupportCase("Conv2d, stride 2", lambda: _images(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), channels=4), _IMAGE),
    SupportCase("Conv2d, dilation 2", lambda: _images(nn.Conv2d(2, 4, 3, dilation=2), channels=4), _IMAGE),
    SupportCase(
        "Conv2d, 2 groups",
        lambda: _images(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), channels=6),
        _IMAGE,
    ),
    SupportCase(
        "Conv2d, depthwise",
        lambda: _images(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), channels=4),
        _IMAGE,
    ),
    SupportCase("ConvTranspose2d", lambda: _images(nn.ConvTranspose2d(2, 4, 2, 2), channels=4), _IMAGE),
)

_POLICIES: tuple[BatchNormPolicy, ...] = ("tracked", "per-width", "static", "frozen")

_NORMALISATIONS = (
    *(
        SupportCase(f"BatchNorm1d, {policy}", lambda: _dense(nn.BatchNorm1d(8), nn.ReLU()), batch_norm=policy)
        for policy in _POLICIES
    ),
    *(
        SupportCase(f"BatchNorm2d, {policy}", lambda: _normalised(nn.BatchNorm2d(8)), _IMAGE, batch_norm=policy)
        for policy in _POLICIES
    ),
    SupportCase("GroupNorm", lambda: _normalised(nn.GroupNorm(4, 8)), _IMAGE),
    SupportCase("LayerNorm", lambda: _dense(nn.LayerNorm(8), nn.ReLU())),
    SupportCase("InstanceNorm2d", lambda: _normalised(nn.InstanceNorm2d(8)), _IMAGE),
)

_RECURRENT = (
    *(
        SupportCase(
            f"{kind.__name__}, {'one layer' if layers == 1 else 'two layers'}",
            lambda kind=kind, layers=layers: _recurrent(kind(3, 5, layers, batch_first=True), 5),  # type: ignore[misc]
            _SERIES,
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for layers in (1, 2)
    ),
    *(
        SupportCase(
            f"{kind.__name__}, bidirectional",
            lambda kind=kind: _recurrent(kind(3, 5, batch_first=True, bidirectional=True), 10),  # type: ignore[misc]
            _SERIES,
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    ),
    *(
        SupportCase(kind.__name__, lambda kind=kind: _cell(kind(3, 5)), _SERIES)  # type: ignore[misc]
        for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
    ),
)

_POOLINGS = (
    SupportCase("MaxPool1d", lambda: _signals(nn.Conv1d(2, 4, 3), nn.MaxPool1d(2), channels=4), _SIGNAL),
    *(
        SupportCase(
            name,
            lambda pool=pool: _images(nn.Conv2d(2, 4, 3), nn.ReLU(), pool, nn.Conv2d(4, 4, 1), channels=4),  # type: ignore[misc]
            _IMAGE,
        )
        for name, pool in (
            ("MaxPool2d", nn.MaxPool2d(2)),
            ("MaxPool2d, overlapping", nn.MaxPool2d(3, 2, 1)),
            ("AvgPool2d", nn.AvgPool2d(2)),
            ("AvgPool2d, overlapping", nn.AvgPool2d(3, 2, 1)),
            ("AdaptiveAvgPool2d to 2 x 2", nn.AdaptiveAvgPool2d(2)),
            ("AdaptiveMaxPool2d to 1 x 1", nn.AdaptiveMaxPool2d(1)),
            ("AdaptiveMaxPool2d, windows of two sizes", nn.AdaptiveMaxPool2d(4)),
            ("Upsample, nearest", nn.Upsample(scale_factor=2)),
            ("Upsample, bilinear", nn.Upsample(scale_factor=2, mode="bilinear")),
        )
    ),
    SupportCase("Mean over all places", _mean_of_places, _IMAGE),
)

_ACTIVATIONS = tuple(
    SupportCase(type(layer).__name__, lambda layer=layer: _dense(layer))  # type: ignore[misc]
    for layer in (
        *(nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.1), nn.ELU(), nn.GELU(), nn.SiLU(), nn.Hardswish(), nn.Tanh()),
        *(nn.Sigmoid(), nn.Softmax(dim=1)),
    )
)

_STRUCTURES = (
    SupportCase("Residual sum", _residual),
    SupportCase("Concatenation", _concatenation),
    SupportCase("Attention, written out", lambda: _attention(fused=False), _SERIES),
    SupportCase("scaled_dot_product_attention", lambda: _attention(fused=True), _SERIES),
    SupportCase("MultiheadAttention", _multihead, _SERIES),
    SupportCase("Dropout", lambda: _dense(nn.ReLU(), nn.Dropout(0.2))),
)

LAYERS = (*_LAYERS, *_NORMALISATIONS, *_RECURRENT, *_POOLINGS, *_ACTIVATIONS, *_STRUCTURES)
"""Every line of the table."""
