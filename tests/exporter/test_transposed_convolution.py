"""Transposed convolutions: as torch has them, with units that drop, in every runtime."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edge_fl
from edge_fl.core.errors import UnsupportedModelError
from exporter.transposed_convolution import TransposedConvolution

_CASES = [
    (kernel, stride, padding, extra, dilation)
    for kernel, stride, padding, extra, dilation in product((1, 2, 3, 4), (1, 2, 3), (0, 1), (0, 1), (1, 2))
    if extra < max(stride, dilation) and 6 * stride + dilation * (kernel - 1) - 2 * padding > 0
]


@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_every_shape_is_that_of_torch(kind: type[nn.ConvTranspose1d | nn.ConvTranspose2d]) -> None:
    torch.manual_seed(0)
    for case in _CASES:
        kernel, stride, padding, extra, dilation = case
        layer = kind(3, 4, kernel, stride, padding, extra, bias=bool(kernel % 2), dilation=dilation).double()
        x = torch.randn(2, 3, *((7,) if kind is nn.ConvTranspose1d else (7, 5)), dtype=torch.double)
        torch.testing.assert_close(TransposedConvolution(layer)(x), layer(x), msg=str(case))
    uneven = nn.ConvTranspose2d(3, 4, (2, 3), (2, 3)).double()
    x = torch.randn(2, 3, 5, 6, dtype=torch.double)
    torch.testing.assert_close(TransposedConvolution(uneven)(x), uneven(x))


class UNet(nn.Module):
    """Down and up again, with a shortcut beside; both ways to grow."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom = nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.grow, self.up = (
            nn.ConvTranspose2d(8, 6, 2, stride=2),
            nn.ConvTranspose2d(12, 4, 4, stride=2, padding=1),
        )
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.down(x))
        grown = torch.relu(self.grow(torch.relu(self.bottom(first))))
        return self.out(torch.relu(self.up(torch.cat([first, grown], 1))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "runtime",
    ["onnx", *(pytest.param(runtime, marks=pytest.mark.matrix) for runtime in ("torch-eager", "executorch"))],
)
def test_a_u_net_trains_with_half_of_its_units(runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    bundle = edge_fl.export(
        UNet(), torch.zeros(2, 1, 8, 8), loss="mse", runtimes=[runtime], widths=[1.0, 0.5], batch=10,
        output=tmp_path / "b",
    )  # fmt: skip
    assert {block.name: block.size for block in bundle.layout.blocks} == {
        "down": 6,
        "bottom": 8,
        "grow": 6,
        "up": 4,
    }
    assert max(parity.weights for parity in bundle.manifest.parity.values()) < 1e-4
    signs = np.random.default_rng(0).choice([-1, 1], (20, 1, 2, 2)).astype(np.float32)
    x = signs.repeat(4, axis=2).repeat(4, axis=3)
    run = edge_fl.simulate(
        bundle, (x, x), method=edge_fl.FjORD(widths=(0.5, 1.0)), clients=2, fraction=1, rounds=3, local_steps=20,
        batch=10, lr=0.05, runtime=runtime, test_data=(x, x), output=tmp_path / "run",
    )  # fmt: skip
    losses = [record.loss for record in run.metrics]
    assert losses[-1] < losses[0]


def test_half_of_a_growing_layer_is_its_first_filters(tmp_path: Path) -> None:
    """One step of plain torch on a sub-network that is cut by hand."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(2, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 1, 3))
    bundle = edge_fl.export(model, torch.zeros(2, 2, 4, 4), loss="mse", output=tmp_path / "b")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 2, 4, 4), (8, 1, 7, 7)))
    run = edge_fl.simulate(
        bundle, (x, y), method="heterofl", parameters={"levels": ["b"]}, clients=1, fraction=1, rounds=1,
        local_steps=2, batch=8, lr=0.1, output=tmp_path / "run",
    )  # fmt: skip
    start = bundle.weights()
    held = {
        "0.weight": start["0.weight"][:, :3], "0.bias": start["0.bias"][:3], "2.weight": start["2.weight"][:, :3],
        "2.bias": start["2.bias"],
    }  # fmt: skip
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in held.items()}
    optimizer = torch.optim.SGD(tensors.values(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        grown = nn.functional.conv_transpose2d(
            torch.from_numpy(x), tensors["0.weight"], tensors["0.bias"], stride=2
        )
        found = nn.functional.conv2d(torch.relu(grown * 2), tensors["2.weight"], tensors["2.bias"])
        nn.functional.mse_loss(found, torch.from_numpy(y)).backward()
        optimizer.step()
    np.testing.assert_allclose(run.weights["0.weight"][:, :3], tensors["0.weight"].detach(), atol=1e-5)
    np.testing.assert_array_equal(run.weights["0.weight"][:, 3:], start["0.weight"][:, 3:])
    np.testing.assert_allclose(run.weights["2.weight"][:, :3], tensors["2.weight"].detach(), atol=1e-5)


def test_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="ConvTranspose2d of 2 groups, which no runtime trains"):
        edge_fl.export(
            nn.Sequential(nn.ConvTranspose2d(4, 4, 2, groups=2)), torch.zeros(2, 4, 4, 4), loss="mse",
            output=tmp_path / "b",
        )  # fmt: skip
