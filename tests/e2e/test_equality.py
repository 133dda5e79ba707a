"""The whole system against a plain torch FedAvg loop: same seed, same batches, same order."""

import copy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import nn

from broker.summary import RunSummary
from edge_fl.core.bundle import Bundle
from edge_fl.core.randomness import Stream
from edge_fl.data.batcher import batches
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.transport.address import BrokerAddress
from exporter.zoo.mlp import digits

ROUNDS, STEPS, BATCH, LR, SEED = 5, 5, 20, 0.1, 7


def plain_fedavg(start: dict[str, NDArray[np.float32]], clients: int) -> dict[str, NDArray[np.float64]]:
    """FedAvg as one would write it in torch, sharing nothing with the system but the batches."""
    model = digits()
    model.load_state_dict({name: torch.tensor(tensor) for name, tensor in start.items()})
    for round_ in range(1, ROUNDS + 1):
        local_models, sizes = [], []
        for i in range(clients):
            samples = client_samples(DataSpec.parse(f"digits:{i}/{clients}"))
            stream = Stream.of(seed=SEED, purpose="batches", client=f"client-{i}", round=round_)
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=LR)
            for batch in batches(samples, steps=STEPS, size=BATCH, stream=stream):
                real = batch.weight > 0
                optimizer.zero_grad()
                x, y = torch.tensor(batch.x[real]), torch.tensor(batch.y[real])
                nn.functional.cross_entropy(local(x), y).backward()
                optimizer.step()
            local_models.append(local.state_dict())
            sizes.append(len(samples.y))
        mean = {
            name: sum(n * local[name].double() for n, local in zip(sizes, local_models, strict=True)) / sum(sizes)
            for name in start
        }
        model.load_state_dict(mean)
    return {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}


def final(summary: RunSummary) -> dict[str, NDArray[np.float32]]:
    return load_file(summary.weights)


def largest_difference(one: dict[str, NDArray], other: dict[str, NDArray]) -> float:
    assert sorted(one) == sorted(other)
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def test_fedavg_equals_a_plain_torch_loop(system, digits_bundle: Bundle, address: BrokerAddress) -> None:
    summary = system.run(system.config(rounds=ROUNDS), system.agents(), address)
    reference = plain_fedavg(digits_bundle.weights(), clients=3)
    assert largest_difference(final(summary), reference) <= 1e-5
    assert largest_difference(reference, digits_bundle.weights()) > 1e-2  # it did train


def test_a_fleet_trains_on_from_another_runs_weights(
    system, digits_bundle: Bundle, embedded: BrokerAddress
) -> None:
    first = system.run(system.config(rounds=1), system.agents(), embedded)
    config = system.config(rounds=ROUNDS, initial_weights=str(first.weights.parent))
    summary = system.run(config, system.agents(), embedded)

    assert largest_difference(final(summary), plain_fedavg(final(first), clients=3)) <= 1e-5
    assert (summary.weights.parent / "initial.safetensors").read_bytes() == first.weights.read_bytes()


@pytest.mark.parametrize("mode", ["rows", "units"])
def test_fedbiad_that_drops_nothing_equals_fedavg(
    system, digits_bundle: Bundle, embedded: BrokerAddress, mode: str
) -> None:
    parameters = {"dropout": [0], "variance": 0.0, "mode": mode}
    config = system.config("fedbiad", rounds=ROUNDS, parameters=parameters)
    summary = system.run(config, system.agents(), embedded)
    assert largest_difference(final(summary), plain_fedavg(digits_bundle.weights(), clients=3)) <= 1e-5


def test_executorch_and_onnx_fleets_agree(system, digits_bundle: Bundle, embedded: BrokerAddress) -> None:
    """Weights for FedAvg, to 1e-4; a mixed fleet, since runtimes are each device's own affair."""
    agents = [*system.agents()[:2], *system.agents(runtime="executorch")[2:]]
    summary = system.run(system.config(rounds=ROUNDS), agents, embedded)
    assert largest_difference(final(summary), plain_fedavg(digits_bundle.weights(), clients=3)) <= 1e-4


def test_a_fedbiad_update_leaves_dropped_rows_at_home(system, embedded: BrokerAddress) -> None:
    """Sizes of real uploads: dense FedAvg, FedBIAD in rows mode, FedBIAD in units mode."""
    sizes = {}
    for method, parameters in (
        ("fedavg", {}),
        ("fedbiad", {"dropout": [500], "mode": "rows"}),
        ("fedbiad", {"dropout": [500], "mode": "units"}),
    ):
        config = system.config(method, rounds=1, parameters=parameters)
        summary = system.run(config, system.agents(), embedded)
        (sizes[f"{method}-{parameters.get('mode', 'dense')}"],) = set(summary.rounds[0].uplink.values())
    assert sizes["fedbiad-units"] < sizes["fedbiad-rows"] < 0.65 * sizes["fedavg-dense"]
