"""`edge-fl extract`: from a finished run to a file that predicts."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_fl.core.errors import ConfigError
from edge_fl.data.class_names import read_class_names
from exporter.commands.export_options import parse_metadata

if TYPE_CHECKING:
    from exporter.extract.card import Card

__all__ = ["extract"]


def extract(
    *,
    run: Annotated[Path, typer.Argument(help="The run's folder, from `edge-fl serve` or `edge-fl simulate`.")],
    bundle: Annotated[
        Path | None, typer.Option(help="The bundle that was trained [default: where the run had it].")
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="onnx, executorch or torch [default: onnx].")] = None,
    width: Annotated[float, typer.Option(help="Kept share of each block's units, the first ones.")] = 1.0,
    untrained_width: Annotated[
        bool, typer.Option("--untrained-width", help="Deliver a width that the run's method trained no model of.")
    ] = False,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Leave out units whose weights are all exactly zero.")
    ] = False,
    test_data: Annotated[
        str | None,
        typer.Option(help="What the model is scored on, as --data has it [default: the run's test data]."),
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="A text file with the name of a class a line [default: the bundle's].")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE to be kept with the model, beside the bundle's; repeat for several."),
    ] = None,
    adapter: Annotated[
        bool,
        typer.Option("--adapter", help="Deliver the adapters alone, as a folder that Hugging Face's PEFT loads."),
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder, or the file (.onnx, .pte, .pt2).")
    ] = Path("model"),
    json: Annotated[bool, typer.Option("--json", help="Print what is known of the model as JSON.")] = False,
) -> None:
    """Deliver a run's final model, or its first units, with the weights in it, proven equal to what was trained.

    Or deliver its adapters alone, for PEFT, which holds the frozen model.

    Example: edge-fl extract runs/ID --runtime onnx --width 0.4 -o digits.onnx

    Example: edge-fl extract runs/ID --adapter --width 0.5 -o adapter/
    """
    if adapter and (runtime, class_names, metadata, test_data) != (None, None, None, None):
        raise ConfigError(
            "PEFT's folder has no runtime, class names, metadata or scores: leave these options or --adapter out."
        )
    names, own = read_class_names(class_names), parse_metadata(metadata or [])
    from exporter.extract.api import extract as extract_run
    from exporter.extract.api import extract_adapters

    def warn(sentence: str) -> None:
        typer.echo(sentence, err=True)

    shared: dict[str, Any] = {
        "bundle": bundle,
        "width": width,
        "untrained_width": untrained_width,
        "sparse": sparse,
        "warn": warn,
    }
    if adapter:
        config = extract_adapters(run, output, **shared)
        typer.echo(json_module.dumps(config) if json else _adapter_text(output, config))
        return
    path, card = extract_run(
        run,
        output,
        runtime=runtime or "onnx",
        test_data=test_data,
        class_names=names or (),
        metadata=own,
        **shared,
    )
    typer.echo(_json(path, card) if json else _text(path, card))


def _adapter_text(output: Path, config: dict[str, Any]) -> str:
    others = ", ".join(config["modules_to_save"] or ())
    return (
        f"{output}: adapters of rank {config['r']} and alpha {config['lora_alpha']:g}"
        f"{f', and {others}' if others else ''}\n"
        f"  load them with peft.PeftModel.from_pretrained(model, '{output}')"
    )


def _json(path: Path, card: "Card") -> str:
    import msgspec

    return json_module.dumps({"path": str(path), **msgspec.to_builtins(card)})


def _text(path: Path, card: "Card") -> str:
    kept = ", ".join(f"{block}: {count} of {card.of[block]}" for block, count in card.units.items())
    from edge_fl.core.bundle import TOKENIZER
    from edge_fl.metrics.text import scores_text
    from exporter.extract.card import card_file

    measured = (
        f", {scores_text(card.scores)} on {card.test_data or 'the test data of the run'}" if card.scores else ""
    )
    tokenizer = "" if card.pad is None else f"\n  {path.with_name(TOKENIZER)} turns texts into tokens"
    return (
        f"{path}: {card.name} after {card.round} rounds of {card.method}, {card.parameters:,} trained numbers, "
        f"{card.size:,} bytes, within {card.parity:.1e} of what was trained{measured}\n"
        f"  units kept: {kept or 'all, as none can be left out'}\n"
        f"  {card_file(path)} says what goes in and what comes out{tokenizer}"
    )
