"""What `edge-fl export --check` prints."""

from typing import TYPE_CHECKING, Any

import msgspec
import typer

from edge_fl.commands.dropout import dropout_text
from edge_fl.commands.masking import masking, masking_text
from edge_fl.commands.tables import show_table
from edge_fl.commands.widths import describe_widths, show_widths
from exporter.sentence import some_names

if TYPE_CHECKING:
    from exporter.report import BatchNorm, Findings

_SHOWN = 4  # layers of a line

__all__ = ["describe_findings", "show_findings"]


def describe_findings(found: "Findings") -> dict[str, Any]:
    """Everything as JSON has it; widths are shares, sizes bytes."""
    layout = found.derivation.layout
    return {
        "blocks": dict(layout.sizes),
        "tensors": {tensor.name: masking(tensor) for tensor in layout.trained.tensors},
        "personal": [tensor.name for tensor in layout.personal],
        "dense": found.derivation.dense,
        "batch_norm": msgspec.to_builtins(found.batch_norm),
        "widths": describe_widths(layout, found.costs),
        "missing": msgspec.to_builtins(found.missing),
        "step_memory": {"onnx": {f"{width / 1000:g}": size for width, size in found.memory.items()}},
    }


def show_findings(found: "Findings") -> None:
    """The same for a person."""
    layout = found.derivation.layout
    show_table("Blocks", ["block", "units"], layout.sizes.items())
    masks = {tensor.name: masking(tensor) for tensor in layout.trained.tensors}
    show_table(
        "Masked",
        ["tensor", "shape", "rows mode", "units mode"],
        [
            [
                t.name,
                "x".join(map(str, t.shape)),
                *(masking_text(masks[t.name][mode]) for mode in ("rows", "units")),
            ]
            for t in layout.trained.tensors
        ],
    )
    dense = [(some_names(layers, most=_SHOWN), why) for why, layers in found.derivation.dense_by_reason.items()]
    show_table("Dense", ["layers", "why"], dense)
    from edge_fl.core.frozen import count_frozen

    trained = sum(tensor.size for tensor in layout.trained.parameters)
    typer.echo(f"{trained:,} numbers are trained, {count_frozen(layout):,} are frozen.")
    if found.dropout:
        typer.echo(dropout_text({place.mask.name: place.p for place in found.dropout}))
    if layout.personal:
        typer.echo(f"Each device keeps to itself: {some_names([t.name for t in layout.personal], most=_SHOWN)}.")
    show_widths(describe_widths(layout, found.costs))
    if found.memory:
        show_table(
            "Memory in onnxruntime",
            ["width", "MB of a train step, beside the loaded libraries"],
            [(f"{width / 1000:g}", f"{size / 1e6:.0f}") for width, size in found.memory.items()],
        )
    if found.batch_norm is not None:
        _show_batch_norm(found.batch_norm)
    for runtime, missing in found.missing.items():
        if missing is None:
            typer.echo(f"{runtime}: what it cannot train shows only in an export here.")
        for kernel in missing or ():
            typer.echo(kernel.sentence(runtime))
        if missing == ():
            typer.echo(f"{runtime}: has a kernel for every operation of the train step.")
    typer.echo("Nothing was compiled or written; an export also proves every program against torch.")


def _show_batch_norm(found: "BatchNorm") -> None:
    typer.echo(f"BatchNorm in {', '.join(found.layers)}: {found.policy}, {found.meaning}.")
    show_table("In its place", ["choice", "what it does"], found.alternatives.items())
