"""`edge-fl inspect`: what a bundle holds, once every checksum has been verified. Needs no torch."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from edge_fl.commands.dropout import dropout_text
from edge_fl.commands.masking import masking, masking_text
from edge_fl.commands.tables import show_table
from edge_fl.commands.widths import describe_widths, show_widths

if TYPE_CHECKING:
    from edge_fl.core.bundle import Bundle
    from edge_fl.core.layout import Tensor

__all__ = ["inspect"]


def inspect(
    *,
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Verify a bundle and print its layout, programs, costs, parity and the tools that made it.

    Example: edge-fl inspect bundle/
    """
    from edge_fl.core.bundle import Bundle

    found = describe(Bundle.load(bundle))
    if json:
        typer.echo(json_module.dumps(found, indent=1))
    else:
        _show(found)


def describe(bundle: "Bundle") -> dict[str, Any]:
    """Everything ``inspect`` prints, as JSON has it; sizes are in bytes, widths in shares."""
    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "dataset": manifest.dataset,
        "loss": manifest.loss,
        "optimizer": msgspec.to_builtins(manifest.optimizer),
        "batch_norm": manifest.batch_norm,
        "statistic_widths": [width / 1000 for width in manifest.statistic_widths],
        "variants": sorted({p.variant for made in manifest.programs.values() for p in made if p.kind == "step"}),
        "input": list(manifest.input.shape),
        "inputs": msgspec.to_builtins(manifest.inputs),
        "vocabulary": manifest.vocabulary,
        "features": None if manifest.features is None else list(manifest.features.shape),
        "tokenizer": None if manifest.tokenizer is None else msgspec.to_builtins(manifest.tokenizer),
        "target": list(manifest.target.shape),
        "classes": manifest.classes,
        "layout": manifest.layout.digest,
        "blocks": {block.name: block.size for block in manifest.layout.blocks},
        "tensors": [_tensor(tensor) for tensor in manifest.layout.trained.tensors],
        "frozen": _frozen(bundle),
        "dropout": {place.mask.name: place.p for place in manifest.dropout},
        "personal": [tensor.name for tensor in manifest.layout.personal],
        "programs": [
            {
                "runtime": runtime,
                "file": program.file,
                "kind": program.kind,
                "variant": program.variant if program.kind == "step" else None,
                "kept": program.kept,
                "batch": program.batch,
                "micro_batch": program.micro_batch,
                "bytes": manifest.files[program.file].size,
            }
            for runtime, programs in manifest.programs.items()
            for program in programs
        ],
        "program_bytes": {
            runtime: sum(manifest.files[program.file].size for program in programs)
            for runtime, programs in manifest.programs.items()
        },
        "widths": describe_widths(manifest.layout, manifest.costs),
        "parity": {
            runtime: {"steps": parity.steps, "weights": parity.weights, "outputs": parity.outputs}
            for runtime, parity in manifest.parity.items()
        },
        "columns": list(manifest.columns),
        "class_names": list(manifest.class_names),
        "metadata": manifest.metadata,
        "tools": manifest.tools,
        "notes": list(manifest.notes),
    }


def _frozen(bundle: "Bundle") -> dict[str, Any] | None:
    from edge_fl.core.frozen import FROZEN, count_frozen

    if not bundle.layout.frozen:
        return None
    dtypes = sorted({tensor.dtype for tensor in bundle.layout.frozen})
    return {
        "numbers": count_frozen(bundle.layout),
        "dtypes": dtypes,
        "bytes": bundle.manifest.files[FROZEN].size,
    }


def _tensor(tensor: "Tensor") -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        **masking(tensor),
    }


def _show(found: dict[str, Any]) -> None:
    typer.echo(
        f"{found['name']}{' for ' if found['dataset'] else ''}{found['dataset']}: {_input_text(found)}, "
        f"{found['classes']} classes, "
        f"loss {found['loss']}, {_optimizer_text(found['optimizer'])}, batch-norm {_batch_norm_text(found)}, "
        f"train steps {', '.join(found['variants'])}, layout {found['layout']}"
    )
    show_table("Blocks", ["block", "units"], found["blocks"].items())
    show_table(
        "Masked",
        ["tensor", "shape", "rows mode", "units mode"],
        [
            [t["name"], _shape(t["shape"]), masking_text(t["rows"]), masking_text(t["units"])]
            for t in found["tensors"]
        ],
    )
    if found["frozen"]:
        numbers, dtypes, size = found["frozen"].values()
        typer.echo(
            f"{numbers:,} numbers are frozen, as {', '.join(dtypes)}: devices fetch {size / 1e3:.4g} kB once."
        )
    if found["dropout"]:
        typer.echo(dropout_text(found["dropout"]))
    if found["personal"]:
        typer.echo(f"Each device keeps to itself: {', '.join(found['personal'])}.")
    show_widths(found["widths"])
    show_table(
        "Programs",
        ["file", "kind", "kept units", "batch", "bytes"],
        [[p["file"], p["kind"], _kept(p["kept"]), p["batch"] or "any", p["bytes"]] for p in found["programs"]],
    )
    show_table("Sizes", ["runtime", "bytes of its programs"], found["program_bytes"].items())
    show_table(
        "Parity with torch",
        ["runtime", "steps", "weights off by", "outputs off by"],
        [[n, p["steps"], f"{p['weights']:.1e}", f"{p['outputs']:.1e}"] for n, p in found["parity"].items()],
    )
    show_table("Columns", ["feature", "column"], enumerate(found["columns"]))
    show_table("Classes", ["class", "name"], enumerate(found["class_names"]))
    show_table("Metadata", ["key", "value"], found["metadata"].items())
    typer.echo("made with " + ", ".join(f"{name} {version}" for name, version in found["tools"].items()))
    for note in found["notes"]:
        typer.echo(f"note: {note}")


def _batch_norm_text(found: "dict[str, Any]") -> str:
    widths = ", ".join(f"{width:g}" for width in found["statistic_widths"])
    return f"{found['batch_norm']} ({widths})" if widths else str(found["batch_norm"])


def _optimizer_text(optimizer: "dict[str, Any]") -> str:
    """Its name, and whatever of it is not 0."""
    own = {"sgd": ("momentum",), "adam": ("betas", "eps")}[optimizer["name"]]
    settings = [f"{key} {optimizer[key]}" for key in (*own, "weight_decay", "clip") if optimizer[key]]
    return " ".join([optimizer["name"], *settings])


def _input_text(found: dict[str, Any]) -> str:
    texts = "texts as " if found["tokenizer"] else ""
    if not found["inputs"]:
        return f"{texts}input {found['input']}"
    return f"{texts}inputs " + ", ".join(
        f"{each['name']} {each['shape']} {each['dtype']}" for each in found["inputs"]
    )


def _shape(shape: list[int]) -> str:
    return "x".join(map(str, shape))


def _kept(kept: dict[str, int] | None) -> str:
    return "any" if kept is None else ", ".join(str(count) for count in kept.values())
