"""Rounds of HeteroFL, DGC, STC, variational dropout and server momentum against plain code, which shares nothing with
the package but draws and batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.randomness import Stream
from edge_fl.data.batcher import batches
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.runs.config import RunConfig

CLIENTS, ROUNDS, STEPS, BATCH, LR, SEED = 3, 4, 6, 20, 0.1, 7
TRAINERS = ["runtime", pytest.param("stacked", marks=pytest.mark.matrix)]
NAMES = ("1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias")
HIDDEN = 32

Weights = dict[str, NDArray[np.float64]]
Batch = tuple[torch.Tensor, torch.Tensor]


def simulated(
    bundle: Bundle,
    root: Path,
    trainer: str,
    method: str,
    settings: Mapping[str, Any] = MappingProxyType({}),
    **parameters: object,
) -> Weights:
    plain = {"rounds": ROUNDS, "local_steps": STEPS, "batch": BATCH, "lr": LR, "seed": SEED} | dict(settings)
    config = RunConfig(run="reference", method=method, parameters=parameters, clients_per_round=CLIENTS, **plain)
    population = Population(CLIENTS, tiers=CLIENTS)
    made = Simulation(
        bundle=bundle,
        config=config,
        population=population,
        trainer=TrainerSettings(trainer),
        root=root,
        observer=Observer(),
    )
    return {name: array.astype(np.float64) for name, array in load_file(made.run().weights).items()}


def samples_of(client: int) -> int:
    return len(client_samples(DataSpec.parse(f"digits:{client}/{CLIENTS}")).y)


def batches_of(client: int, number: int) -> Iterator[Batch]:
    samples = client_samples(DataSpec.parse(f"digits:{client}/{CLIENTS}"))
    stream = Stream.of(seed=SEED, purpose="batches", client=f"client-{client}", round=number)
    for batch in batches(samples, steps=STEPS, size=BATCH, stream=stream):
        real = batch.weight > 0
        yield torch.tensor(batch.x[real], dtype=torch.float64), torch.tensor(batch.y[real])


def trained(start: Weights, data: Iterator[Batch], scaler: float = 1.0) -> Weights:
    """SGD on a perceptron of any width in float64, the outputs of hidden layers multiplied by ``scaler``."""
    w = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    for x, y in data:
        h = torch.relu(scaler * (x.flatten(1) @ w["1.weight"].T + w["1.bias"]))
        h = torch.relu(scaler * (h @ w["3.weight"].T + w["3.bias"]))
        loss = torch.nn.functional.cross_entropy(h @ w["5.weight"].T + w["5.bias"], y)
        for name, gradient in zip(NAMES, torch.autograd.grad(loss, [w[n] for n in NAMES]), strict=True):
            w[name] = (w[name] - LR * gradient).detach().requires_grad_()
    return {name: array.detach().numpy() for name, array in w.items()}


def flat(weights: Weights) -> NDArray[np.float64]:
    return np.concatenate([weights[name].ravel() for name in NAMES])


def unflat(vector: NDArray[np.floating], like: Weights) -> Weights:
    ends = np.cumsum([like[name].size for name in NAMES])
    parts = np.split(np.asarray(vector, dtype=np.float64), ends[:-1])
    return {name: part.reshape(like[name].shape) for name, part in zip(NAMES, parts, strict=True)}


def start_of(bundle: Bundle) -> Weights:
    return {name: bundle.weights()[name].astype(np.float64) for name in NAMES}


def check(found: Weights, expected: Weights, start: Weights) -> None:
    off = max(float(np.abs(found[name] - expected[name]).max()) for name in NAMES)
    moved = max(float(np.abs(expected[name] - start[name]).max()) for name in NAMES)
    assert off <= 2e-5
    assert moved > 0.01


# --- HeteroFL (Diao et al., 2021, section 3)


def cut(name: str, units: int) -> tuple[slice, ...]:
    """The entries of a tensor that a sub-model of ``units`` a layer has."""
    rows = slice(None) if name.startswith("5.") else slice(units)
    columns = slice(None) if name.startswith("1.") else slice(units)
    return (rows,) if name.endswith("bias") else (rows, columns)


def heterofl(start: Weights, rates: Sequence[int]) -> Weights:
    """Client i trains 1 / ``rates[i]`` of the units; each entry is the plain mean over those who have it."""
    model = start
    for number in range(1, ROUNDS + 1):
        total = {name: np.zeros_like(array) for name, array in model.items()}
        holders = {name: np.zeros(array.shape) for name, array in model.items()}
        for client, rate in enumerate(rates):
            where = {name: cut(name, HIDDEN // rate) for name in NAMES}
            own = {name: model[name][where[name]] for name in NAMES}
            for name, array in trained(own, batches_of(client, number), scaler=float(rate)).items():
                total[name][where[name]] += array
                holders[name][where[name]] += 1
        model = {n: np.where(holders[n] > 0, total[n] / np.maximum(holders[n], 1), model[n]) for n in NAMES}
    return model


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("levels", ["abc", "bde"])
def test_heterofl(digits_bundle: Bundle, tmp_path: Path, trainer: str, levels: str) -> None:
    start = start_of(digits_bundle)
    found = simulated(digits_bundle, tmp_path / "run", trainer, "heterofl", levels=list(levels))
    check(found, heterofl(start, [2 ** "abcde".index(level) for level in levels]), start)


# --- compressors: what a client sends of its change, and what it remembers


def top(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    return np.argsort(-np.abs(values), kind="stable")[:k]


def compressed_fedavg(start: Weights, client_of: "type[Dgc | Stc]", server: "Stc | None" = None) -> Weights:
    """FedAvg of what clients send, weighed by samples; ``server`` compresses the change again."""
    model = flat(start).astype(np.float32)
    clients = [client_of() for _ in range(CLIENTS)]
    sizes = [samples_of(i) for i in range(CLIENTS)]
    for number in range(1, ROUNDS + 1):
        given, sent = unflat(model, start), []
        for i, client in enumerate(clients):
            change = flat(trained(given, batches_of(i, number))) - flat(given)
            sent.append(client.send(change.astype(np.float32), number))
        mean = sum(n * s.astype(np.float64) for n, s in zip(sizes, sent, strict=True)) / sum(sizes)
        moved = mean.astype(np.float32) if server is None else server.send(mean.astype(np.float32), number)
        model = (model + moved).astype(np.float32)
    return unflat(model, start)


class Dgc:
    """Lin et al. (2018): clip what is new, correct by momentum, accumulate, send the largest, forget what was sent."""

    clip, momentum, ratios, last = 0.5, 0.8, (0.3, 0.1), 0.04

    def __init__(self) -> None:
        self.u = self.v = np.zeros(1, np.float32)

    def send(self, change: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        norm = np.linalg.norm(change.astype(np.float64))
        change = (change * min(1.0, self.clip / norm)).astype(np.float32)
        self.u = np.float32(self.momentum) * self.u + change
        self.v = self.v + self.u
        share = self.ratios[number - 1] if number <= len(self.ratios) else self.last
        kept = top(self.v, round(share * len(change)))
        sent = np.zeros_like(change)
        sent[kept] = self.v[kept]
        self.u[kept] = self.v[kept] = 0
        return sent


class Stc:
    """Sattler et al. (2019), Algorithm 1 with the error fed back: signs of the largest, at their mean size."""

    share = 0.05

    def __init__(self) -> None:
        self.residual = np.zeros(1, np.float32)

    def send(self, change: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        del number
        total = change + self.residual
        kept = top(total, round(self.share * len(total)))
        sent = np.zeros_like(total)
        sent[kept] = np.sign(total[kept]) * np.float32(np.abs(total[kept]).mean(dtype=np.float64))
        self.residual = total - sent
        return sent


@pytest.mark.parametrize("trainer", TRAINERS)
def test_dgc(digits_bundle: Bundle, tmp_path: Path, trainer: str) -> None:
    parameters = {"ratio": Dgc.last, "warmup": list(Dgc.ratios), "momentum": Dgc.momentum, "clip": Dgc.clip}
    named = {f"dgc.{key}": value for key, value in parameters.items()}
    start = start_of(digits_bundle)
    found = simulated(digits_bundle, tmp_path / "run", trainer, "fedavg+dgc", **named)
    check(found, compressed_fedavg(start, Dgc), start)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("down", [0.05, 0.0])
def test_stc(digits_bundle: Bundle, tmp_path: Path, trainer: str, down: float) -> None:
    named = {"stc.ratio": Stc.share, "stc.down": down}
    start = start_of(digits_bundle)
    found = simulated(digits_bundle, tmp_path / "run", trainer, "fedavg+stc", **named)
    check(found, compressed_fedavg(start, Stc, Stc() if down else None), start)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_momentum_on_the_server(digits_bundle: Bundle, tmp_path: Path, trainer: str) -> None:
    """FedAvgM (Hsu et al., 2019): v = beta v + change, and v moves the model."""
    start = start_of(digits_bundle)
    found = simulated(digits_bundle, tmp_path / "run", trainer, "fedavg", **{"server.momentum": 0.7})
    model, velocity, sizes = flat(start), np.zeros(1), [samples_of(i) for i in range(CLIENTS)]
    for number in range(1, ROUNDS + 1):
        given = unflat(model, start)
        changes = [flat(trained(given, batches_of(i, number))) - model for i in range(CLIENTS)]
        velocity = 0.7 * velocity + sum(n * c for n, c in zip(sizes, changes, strict=True)) / sum(sizes)
        model = model + velocity
    check(found, unflat(model, start), start)


# --- variational dropout (Du et al., Algorithm 1 with alpha local)

LAYERS = ("1", "3", "5")
RATES_LR, THETA_LR, THRESHOLD, RATES = 0.3, 0.01, 3.0, (2.0, 3.1)


def first_rates(start: Weights) -> list[torch.Tensor]:
    stream, low, high = Stream.of(seed=SEED, purpose="vardrop-rates"), *RATES
    drawn = [(stream.uint32(start[f"{n}.weight"].size).astype(np.float64) + 0.5) / 2**32 for n in LAYERS]
    shapes = [start[f"{n}.weight"].shape for n in LAYERS]
    return [torch.tensor((low + (high - low) * u).reshape(s)) for u, s in zip(drawn, shapes, strict=True)]


def noisy(
    x: torch.Tensor, w: dict[str, torch.Tensor], layer: str, rates: torch.Tensor, noise: NDArray
) -> torch.Tensor:
    """The layer's outputs under weights N(theta, alpha theta^2), eq. (2), by their own mean and variance."""
    theta = w[f"{layer}.weight"]
    variance = (x * x) @ (rates.exp() * theta * theta).T
    return x @ theta.T + w[f"{layer}.bias"] + torch.sqrt(variance + 1e-8) * torch.tensor(noise)


def divergence(rates: torch.Tensor) -> torch.Tensor:
    """Eq. (3) without its constant."""
    return (0.5 * torch.log1p(torch.exp(-rates)) - 0.64 * torch.sigmoid(1.87 + 1.49 * rates)).sum()


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """The gradient as a step of 1 in float32 tells it: what is too small for the weight is lost, which Adam sees."""
    before = tensor.detach().float()
    return (before - (before - tensor.grad.float())).double()


class Device:
    """One client: log alpha and its Adam stay here; gradients of what its rates keep are sent."""

    def __init__(self, number: int, start: Weights) -> None:
        self.number = number
        self.rates = [rates.requires_grad_() for rates in first_rates(start)]
        self.adam = torch.optim.Adam(self.rates, lr=RATES_LR)

    def gradients(self, model: Weights, number: int) -> tuple[Weights, Weights]:
        """What is sent, zero where nothing is, and which entries these are."""
        w = {name: torch.tensor(array, requires_grad=True) for name, array in model.items()}
        samples = client_samples(DataSpec.parse(f"digits:{self.number}/{CLIENTS}"))
        client = f"client-{self.number}"
        draws = Stream.of(seed=SEED, purpose="batches", client=client, round=number)
        (batch,) = batches(samples, steps=1, size=BATCH, stream=draws)
        stream = Stream.of(seed=SEED, purpose="vardrop-noise", client=client, round=number, index=0)
        h, real = torch.tensor(batch.x, dtype=torch.float64).flatten(1), torch.tensor(batch.weight)
        for layer, rates in zip(LAYERS, self.rates, strict=True):
            units = len(model[f"{layer}.bias"])
            noise = stream.normal(BATCH * units).astype(np.float64).reshape(BATCH, units)
            h = noisy(h, w, layer, rates, noise)
            h = h if layer == LAYERS[-1] else torch.relu(h)
        losses = torch.nn.functional.cross_entropy(h, torch.tensor(batch.y), reduction="none")
        loss = (losses * real).sum() / real.sum() + sum(map(divergence, self.rates)) / len(samples.y)
        self.adam.zero_grad()
        loss.backward()
        for tensor in (*w.values(), *self.rates):
            tensor.grad = rounded(tensor)
        keeps = {f"{n}.weight": (r <= THRESHOLD).numpy() for n, r in zip(LAYERS, self.rates, strict=True)}
        kept = {name: keeps.get(name, np.ones(model[name].shape)) for name in NAMES}
        sent = {name: w[name].grad.numpy() * kept[name] for name in NAMES}
        self.adam.step()
        return sent, kept


@pytest.mark.parametrize("trainer", TRAINERS)
def test_variational_dropout(digits_bundle: Bundle, tmp_path: Path, trainer: str) -> None:
    start = start_of(digits_bundle)
    parameters = {"lr": THETA_LR, "rate_lr": RATES_LR, "start": list(RATES), "threshold": THRESHOLD}
    settings = {"local_steps": 1, "lr": 1.0, "rounds": 8}
    found = simulated(digits_bundle, tmp_path / "run", trainer, "vardrop", settings, **parameters)

    theta = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    server, devices = (
        torch.optim.Adam(list(theta.values()), lr=THETA_LR),
        [Device(i, start) for i in range(CLIENTS)],
    )
    for number in range(1, settings["rounds"] + 1):
        model = {name: tensor.detach().numpy().copy() for name, tensor in theta.items()}
        updates = [device.gradients(model, number) for device in devices]
        for name, tensor in theta.items():
            tensor.grad = torch.tensor(sum(sent[name] for sent, _ in updates) / CLIENTS)
        server.step()
    votes = {name: sum(kept[name].astype(int) for _, kept in updates) for name in NAMES}
    expected = {name: tensor.detach().numpy() * (2 * votes[name] >= CLIENTS) for name, tensor in theta.items()}
    check(found, expected, start)
    assert 0.1 < np.mean(flat(expected) == 0) < 0.9  # some are pruned
