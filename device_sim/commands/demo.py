"""`edge-fl demo`: the whole road on this machine, with nothing to prepare."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_fl.commands.options import runtime_name
from edge_fl.core.errors import ConfigError
from edge_fl.core.share import thousandths

__all__ = ["demo"]

_TIER_DROPOUT = (0.2, 0.4, 0.5, 0.6)
_DEVICES = 8
_ROUNDS = {"digits": 30, "mnist": 20, "fashion-mnist": 20}


def demo(
    *,
    dataset: Annotated[str, typer.Option(help="digits (in the package), mnist or fashion-mnist.")] = "digits",
    runtime: Annotated[str, typer.Option(help="The runtime the devices train in.", parser=runtime_name)] = "onnx",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Bundle, run, logs and plot go below here.")
    ] = Path("demo"),
) -> None:
    """Export a model, start a broker, a coordinator and 8 device processes in 4 tiers; train with FedBIAD.

    Example: edge-fl demo --dataset fashion-mnist
    """
    from rich.console import Console

    from broker.embedded import EmbeddedBroker
    from broker.live import view
    from broker.run_folder import new_run_id
    from broker.session import serve
    from device_sim.emulation.agent_processes import AgentProcess, Fleet
    from edge_fl.data.registry import load_dataset
    from edge_fl.runs.config import RunConfig
    from edge_fl.runs.run import Run

    if dataset not in _ROUNDS:
        raise ConfigError(f"The demo knows {', '.join(_ROUNDS)}, not '{dataset}'.")
    started, console, run = time.monotonic(), Console(), new_run_id()
    load_dataset(dataset)  # a download shows its progress here, once, before the devices ask for it
    console.print(f"exporting the {dataset} model for {runtime} ...", highlight=False)
    bundle = _export(dataset, runtime, output / run / "bundle")
    config = RunConfig(run=run, **_settings(dataset))
    agents = [
        AgentProcess(f"device-{i}-tier-{i // 2}", f"{dataset}:{i}/{_DEVICES}", tier=i // 2, runtime=runtime)
        for i in range(_DEVICES)
    ]
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(port=0))
        fleet = stack.enter_context(Fleet(agents, address=broker.address, root=output / run / "devices"))
        observer = stack.enter_context(view(console))
        summary = serve(
            bundle=bundle, config=config, root=output / run / "run", address=broker.address, observer=observer
        )
        fleet.wait(timeout=30.0)
    plot = Run(summary.folder).plot(dense=summary.dense)
    for line in (*summary.lines(), f"plot {plot}"):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"{time.monotonic() - started:.0f} s from start to end", highlight=False)


def _settings(dataset: str) -> dict[str, Any]:
    rounds = _ROUNDS[dataset]
    return {
        "method": "fedbiad",
        # Stage two in the last tenth, about where the paper has it (R_b = 55 of 60 rounds).
        "parameters": {
            "dropout": [thousandths(p) for p in _TIER_DROPOUT],
            "stage_boundary": rounds - rounds // 10,
        },
        "rounds": rounds,
        "clients_per_round": _DEVICES,
        "local_steps": 20,
        "batch": 20,
        "lr": 0.1,
        "seed": 0,
    }


def _export(dataset: str, runtime: str, root: Path) -> Any:
    import torch

    from edge_fl.data.registry import dataset_info
    from exporter.export import Target, export_bundle
    from exporter.zoo import build

    info = dataset_info(dataset)
    torch.manual_seed(0)
    widths = tuple(1000 - thousandths(p) for p in (0.0, *_TIER_DROPOUT))
    target = Target.of(info, f"{dataset}-mlp", (runtime,), widths=widths)
    return export_bundle(build(f"{dataset}-mlp"), target, root)
