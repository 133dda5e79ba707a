"""`edge-fl inspect`: what a bundle holds, once every checksum has been verified. Needs no torch."""

import json as json_module
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_fl.cli.masking import masking, masking_text

if TYPE_CHECKING:
    from edge_fl.bundle import Bundle
    from edge_fl.layout import Mode, Tensor

__all__ = ["inspect"]

_WIDTHS = (1000, 800, 600, 500, 400)
_DROPOUTS = (0, 200, 500)


def inspect(
    *,
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Verify a bundle and print its layout, programs, sizes, parity and the tools that made it.

    Example: edge-fl inspect bundle/
    """
    from edge_fl.bundle import Bundle

    found = describe(Bundle.load(bundle))
    typer.echo(json_module.dumps(found, indent=1) if json else "\n".join(_lines(found)))


def describe(bundle: "Bundle") -> dict[str, Any]:
    """Everything ``inspect`` prints, as JSON has it; sizes are in bytes, widths in shares."""
    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "dataset": manifest.dataset,
        "loss": manifest.loss,
        "input": list(manifest.input.shape),
        "classes": manifest.classes,
        "layout": manifest.layout.digest,
        "blocks": {block.name: block.size for block in manifest.layout.blocks},
        "tensors": [_tensor(tensor) for tensor in manifest.layout.tensors],
        "programs": [
            {
                "runtime": runtime,
                "file": program.file,
                "kind": program.kind,
                "kept": program.kept,
                "batch": program.batch,
                "bytes": manifest.files[program.file].size,
            }
            for runtime, programs in manifest.programs.items()
            for program in programs
        ],
        "parameters": _parameters(bundle),
        "frames": _frames(bundle),
        "parity": {
            runtime: {"steps": parity.steps, "weights": parity.weights, "outputs": parity.outputs}
            for runtime, parity in manifest.parity.items()
        },
        "tools": manifest.tools,
        "notes": list(manifest.notes),
    }


def _tensor(tensor: "Tensor") -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        **masking(tensor),
    }


def _parameters(bundle: "Bundle") -> dict[str, int]:
    """Numbers in the compact model at each width."""
    from edge_fl.pattern import Pattern
    from edge_fl.selection import Selection

    parameters = {}
    for width in _WIDTHS:
        selection = Selection.of(Pattern.seeded(bundle.layout, 1000 - width, 0), "units")
        shapes = [selection.shape(tensor) for tensor in bundle.layout.tensors]
        parameters[f"{width / 1000:g}"] = sum(math.prod(shape) for shape in shapes)
    return parameters


def _frames(bundle: "Bundle") -> list[dict[str, Any]]:
    """Bytes of really encoded updates, with a bitmask, in both modes."""
    import numpy as np

    from edge_fl.pattern import Pattern
    from edge_fl.wire.frame import Header, encode_frame

    tensors = {t.name: np.zeros(t.shape, dtype=np.float32) for t in bundle.layout.tensors}
    modes: tuple[Mode, Mode] = ("rows", "units")
    frames = []
    for dropout in _DROPOUTS:
        drawn = Pattern.seeded(bundle.layout, dropout, 0)
        pattern = Pattern(bundle.layout, drawn.mask)
        sizes: dict[str, int] = {}
        for mode in modes:
            header = Header("update", run="inspect", round=1, version=0, layout="", method="inspect", mode=mode)
            sizes[mode] = len(encode_frame(header, pattern, tensors))
        frames.append({"dropout": dropout / 1000, **sizes})
    return frames


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['name']} for {found['dataset']}: input {found['input']}, {found['classes']} classes, "
        f"loss {found['loss']}, layout {found['layout']}",
        "",
        *_table(["block", "units"], [[name, size] for name, size in found["blocks"].items()]),
        "",
        *_table(
            ["tensor", "shape", "rows mode", "units mode"],
            [[t["name"], t["shape"], masking_text(t["rows"]), masking_text(t["units"])] for t in found["tensors"]],
        ),
        "",
        *_table(
            ["program", "kind", "kept units", "batch", "bytes"],
            [[p["file"], p["kind"], _kept(p["kept"]), p["batch"] or "any", p["bytes"]] for p in found["programs"]],
        ),
        "",
        *_table(["width", "parameters"], [[width, n] for width, n in found["parameters"].items()]),
        "",
        *_table(
            ["dropout", "frame bytes (rows)", "frame bytes (units)"],
            [[f["dropout"], f["rows"], f["units"]] for f in found["frames"]],
        ),
        "",
        *_table(
            ["runtime", "steps", "weights off by", "outputs off by"],
            [[n, p["steps"], f"{p['weights']:.1e}", f"{p['outputs']:.1e}"] for n, p in found["parity"].items()],
        ),
        "",
        "made with " + ", ".join(f"{name} {version}" for name, version in found["tools"].items()),
    ]
    return lines + [f"note: {note}" for note in found["notes"]]


def _kept(kept: dict[str, int] | None) -> str:
    return "any" if kept is None else ", ".join(str(count) for count in kept.values())


def _table(head: list[str], rows: list[list[Any]]) -> list[str]:
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
