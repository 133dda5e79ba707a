"""`edge-fl export`: from a PyTorch model to a bundle, or to a report of what would be masked."""

import json as json_module
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_fl.cli.masking import masking, masking_text
from edge_fl.cli.options import runtime_name
from edge_fl.errors import ConfigError, RuntimeMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from edge_fl.bundle import Bundle
    from exporter.derive import Derivation
    from exporter.lower import Report

__all__ = ["export"]

_WIDTHS = (1.0, 0.8, 0.6, 0.5, 0.4)


def export(
    *,
    model: Annotated[str, typer.Argument(help="path/to/file.py:function, which builds the torch.nn.Module.")],
    dataset: Annotated[str, typer.Option(help="The data set whose samples and classes the model fits.")],
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            help="onnx, executorch, torch-eager, ort-training or executorch-training; repeat for several "
            "[default: onnx].",
            parser=runtime_name,
        ),
    ] = None,
    width: Annotated[
        list[float] | None,
        typer.Option(help="Kept share of each block, where each needs a program [default: 1 0.8 0.6 0.5 0.4]."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples a training batch, for the same runtimes.")] = 20,
    name: Annotated[str | None, typer.Option(help="What to call the bundle [default: the file's name].")] = None,
    seed: Annotated[int, typer.Option(help="Seeds torch before the model is built.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The bundle's folder.")] = Path("bundle"),
    check: Annotated[bool, typer.Option("--check", help="Say what would be masked, and write nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
) -> None:
    """Export a model: its layout, initial weights, and a train step for each runtime, proven equal to torch's.

    Example: edge-fl export examples/fashion_mlp.py:build --dataset fashion-mnist --runtime onnx -o bundle/
    """
    from edge_fl.data.registry import dataset_info

    info = dataset_info(dataset)
    widths = tuple(_thousandths(w) for w in width or _WIDTHS)
    module = _built(model, seed)
    from edge_fl.bundle import Input
    from exporter.export import Target, check_model, export_bundle

    target = Target(
        name=name or Path(model.rpartition(":")[0]).stem,
        dataset=dataset,
        input=Input(info.input_shape, "float32"),
        classes=info.classes,
        runtimes=tuple(dict.fromkeys(runtime or ["onnx"])),
        widths=widths,
        batch=batch,
    )
    if check:
        typer.echo(_checked(check_model(module, target.fit), as_json=json))
        return
    with _progress() as report:
        bundle = export_bundle(module, target, output, report=report)
    typer.echo(_written(bundle, as_json=json))


def _built(model: str, seed: int) -> "nn.Module":
    try:
        import torch

        from exporter.model_file import load_model
    except ImportError as error:
        raise RuntimeMissingError(f"Exporting needs the extra `edge-fl[export]`: {error}.") from error
    torch.manual_seed(seed)
    return load_model(model)


def _written(bundle: "Bundle", *, as_json: bool) -> str:
    layout = bundle.layout
    parity = {runtime: result.weights for runtime, result in bundle.manifest.parity.items()}
    if as_json:
        return json_module.dumps({"bundle": str(bundle.root), "layout": layout.digest, "parity": parity})
    lines = [f"{bundle.root}: {bundle.manifest.name}, {layout.size} parameters, {layout.units} droppable units"]
    lines += [f"  {runtime}: weights within {off:.1e} of torch" for runtime, off in parity.items()]
    return "\n".join(lines)


def _thousandths(width: float) -> int:
    value = round(width * 1000)
    if not 0 < value <= 1000 or abs(width * 1000 - value) > 1e-6:
        raise ConfigError(f"A width must be in (0, 1] and a multiple of 0.001, not {width}.")
    return value


def _checked(found: "Derivation", *, as_json: bool) -> str:
    blocks = {block.name: block.size for block in found.layout.blocks}
    masked = {tensor.name: masking(tensor) for tensor in found.layout.tensors}
    if as_json:
        return json_module.dumps({"blocks": blocks, "tensors": masked, "dense": found.dense})
    lines = [f"block '{name}': {size} units" for name, size in blocks.items()]
    for name, modes in masked.items():
        rows, units = masking_text(modes["rows"]), masking_text(modes["units"])
        lines.append(f"tensor '{name}': rows mode {rows}; units mode {units}")
    lines += [f"layer '{name}' stays dense: {reason}" for name, reason in found.dense.items()]
    return "\n".join(lines)


@contextmanager
def _progress() -> "Iterator[Report]":
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"exporting: {text}", highlight=False)
        return
    with console.status("exporting") as status:
        yield lambda text: status.update(f"exporting: {text}")
