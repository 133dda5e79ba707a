"""FedAvg as a user of pfl-research writes it; run by itself, in an environment that has pfl, and given a folder.

``torchrun`` starts as many processes as there are cores. The folder holds ``work.json``, ``data.npz`` and ``model.pt``,
and is given ``found.json``.
"""

import itertools
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Net(nn.Module):
    """A model with its loss, as pfl wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean over a batch."""
        return nn.functional.cross_entropy(self.model(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """None: nothing is evaluated."""
        del x, y
        return {}


class Clock(TrainingProcessCallback):
    """Notes when each round's model is there."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Go on."""
        del aggregate_metrics, model, central_iteration
        self.ended.append(time.perf_counter())
        return False, Metrics()


def users(work: dict[str, Any], x: Tensor, y: Tensor, shares: list[Any]) -> Any:
    """The clients' data: of each as many samples as its steps take, in an order drawn anew in every epoch.

    pfl ends local training after one pass, so a pass is all the steps.
    """
    taken = work["steps"] * work["batch"]

    def make(client: int) -> Any:
        own = shares[client]
        epochs = -(-taken // len(own))
        order = np.concatenate([np.random.permutation(own) for _ in range(epochs)])[:taken]
        return Dataset((x[order], y[order]))

    return FederatedDataset(make, get_user_sampler("random", list(range(len(shares)))))


def run(folder: str) -> None:
    """Simulate what ``folder`` asks for."""
    torch.set_num_threads(1)
    root = Path(folder)
    work = json.loads((root / "work.json").read_text())
    with np.load(root / "data.npz") as data:
        x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
        shares = np.split(data["indices"], data["ends"][:-1])
    np.random.seed(0)
    net = Net(torch.load(root / "model.pt", weights_only=False))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    clients = users(work, x, y, shares)
    clock = Clock()
    began = time.perf_counter()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work["rounds"],
            evaluation_frequency=work["rounds"] + 1,
            train_cohort_size=work["clients"],
            val_cohort_size=None,
        ),
        SimulatedBackend(clients, clients),
        model,
        NNTrainHyperParams(local_batch_size=work["batch"], local_num_epochs=1, local_learning_rate=work["lr"]),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if os.environ.get("RANK", "0") == "0":
        ends = [began, *clock.ended]
        seconds = [end - begin for begin, end in itertools.pairwise(ends)]
        after = net.state_dict()
        moved = max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())
        found = {"version": version("pfl"), "seconds": seconds, "moved": moved}
        (root / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    run(sys.argv[1])
