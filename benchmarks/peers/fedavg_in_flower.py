"""FedAvg as a user of Flower writes it; imported by itself, in Flower's environment, and given a folder of its work.

The folder holds ``work.json``, ``data.npz`` and ``model.pt``, and is given ``found.json``.
"""

import json
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import flwr
import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn


@cache
def _loaded(folder: str) -> tuple[dict[str, Any], Tensor, Tensor, list[Any], nn.Module]:
    """Work, samples, clients' shares and model; once in each of Ray's processes."""
    torch.set_num_threads(1)
    root = Path(folder)
    with np.load(root / "data.npz") as data:
        x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
        shares = np.split(data["indices"], data["ends"][:-1])
    model = torch.load(root / "model.pt", weights_only=False)
    return json.loads((root / "work.json").read_text()), x, y, shares, model


def client_app(folder: str) -> ClientApp:
    """The clients, each of which trains the model it is sent on its own samples."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        work, x, y, shares, model = _loaded(folder)
        own = torch.from_numpy(shares[context.node_config["partition-id"]])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=work["lr"])
        position = len(own)
        for _ in range(work["steps"]):
            if position + work["batch"] > len(own):
                own, position = own[torch.randperm(len(own))], 0
            batch = own[position : position + work["batch"]]
            position += work["batch"]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        record = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"loss": loss.item(), "num-examples": len(own)}),
            }
        )
        return Message(content=record, reply_to=message)

    return app


class TimedFedAvg(FedAvg):
    """Flower's own FedAvg, which notes when a round is begun and when its model is there."""

    def __init__(self, clients: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._clients = clients
        self.begun: list[float] = []
        self.ended: list[float] = []

    def configure_train(self, *arguments: Any, **named: Any) -> Any:
        """Note the beginning of a round."""
        self.begun.append(time.perf_counter())
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Note its end, when the mean is taken; a client that does not answer fails all."""
        replies = list(replies)
        trained = [reply for reply in replies if not reply.has_error()]
        if len(trained) != self._clients:
            raise RuntimeError(f"{len(trained)} of {self._clients} clients answered")
        found = super().aggregate_train(server_round, replies)
        self.ended.append(time.perf_counter())
        return found


def server_app(folder: str) -> ServerApp:
    """The server, which writes what it found once all rounds are over."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        work, _, _, shares, model = _loaded(folder)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        strategy = TimedFedAvg(
            work["clients"],
            fraction_train=work["clients"] / len(shares),
            fraction_evaluate=0.0,
            min_train_nodes=work["clients"],
            min_available_nodes=len(shares),
        )
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(before), num_rounds=work["rounds"])
        after = result.arrays.to_torch_state_dict()
        seconds = [end - begin for begin, end in zip(strategy.begun, strategy.ended, strict=True)]
        moved = max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())
        found = {"version": flwr.__version__, "seconds": seconds, "moved": moved}
        (Path(folder) / "found.json").write_text(json.dumps(found))

    return app


def run(folder: str) -> None:
    """Simulate what ``folder`` asks for."""
    work, _, _, shares, _ = _loaded(folder)
    run_simulation(
        server_app=server_app(folder),
        client_app=client_app(folder),
        num_supernodes=len(shares),
        backend_config={
            "init_args": {"num_cpus": work["at_once"], "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
