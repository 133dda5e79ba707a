"""`edge-fl extract`: from a finished run to a file that predicts."""

import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_fl.core.errors import ConfigError, DataError, RunError, RuntimeMissingError, StateError
from edge_fl.core.share import parse_width
from edge_fl.data.class_names import read_class_names
from exporter.commands.export_options import parse_metadata
from exporter.sentence import some_names

if TYPE_CHECKING:
    from edge_fl.core.bundle import Bundle, Manifest
    from edge_fl.runs.run import Run
    from exporter.extract.card import Card
    from exporter.extract.extract import Trained, Wanted

__all__ = ["extract"]

_SHOWN = 4  # names of a line


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
    if adapter and (runtime, class_names, metadata) != (None, None, None):
        raise ConfigError(
            "PEFT's folder has no runtime, class names or metadata: leave these options or --adapter out."
        )
    thousandths = parse_width(width)
    names, own = read_class_names(class_names), parse_metadata(metadata or [])
    from edge_fl.core.bundle import Bundle
    from edge_fl.runs.run import Run
    from exporter.extract.extract import Wanted
    from exporter.extract.extract import extract as extract_model

    opened = Run.open(run)
    source = Bundle.load(bundle or _bundle_of(opened))
    if source.layout.personal:
        named = some_names([tensor.name for tensor in source.layout.personal], most=_SHOWN)
        typer.echo(
            f"Each device has its own {named}: what is delivered has those of the bundle, and no score.", err=True
        )
    trained = _trained(opened, source.manifest, thousandths)
    wanted = Wanted(
        runtime or "onnx",
        thousandths,
        sparse,
        class_names=names or source.manifest.class_names or None,
        metadata={**source.manifest.metadata, **own},
        untrained=untrained_width,
    )
    if adapter:
        from exporter.extract.adapter import extract_adapter

        config = extract_adapter(source, trained, wanted, output)
        typer.echo(json_module.dumps(config) if json else _adapter_text(output, config))
        return
    if thousandths <= trained.width:
        tested = opened.config.test_data or f"the test split of {source.manifest.dataset}"
        wanted = replace(wanted, scores=_scores(opened, source, trained, wanted), test_data=tested)
    path, card = extract_model(source, trained, wanted, output)
    if between := trained.between(thousandths):
        typer.echo(f"The method has no width {width:g} as it was set: {between} may predict better.", err=True)
    typer.echo(_json(path, card) if json else _text(path, card))


def _adapter_text(output: Path, config: dict[str, Any]) -> str:
    others = ", ".join(config["modules_to_save"] or ())
    return (
        f"{output}: adapters of rank {config['r']} and alpha {config['lora_alpha']:g}"
        f"{f', and {others}' if others else ''}\n"
        f"  load them with peft.PeftModel.from_pretrained(model, '{output}')"
    )


def _bundle_of(run: "Run") -> Path:
    """Where the run had its bundle; StateError where its record does not say."""
    place = run.config.about.get("bundle")
    if not isinstance(place, str):
        raise StateError(f"The run at '{run.folder}' does not say where its bundle is: give --bundle.")
    return Path(place)


def _trained(run: "Run", manifest: "Manifest", width: int) -> "Trained":
    """What a run's folder holds, for a model of ``width``; an interrupted run's too, as far as it came."""
    from edge_fl.methods.capabilities import NarrowsBlocks, TrainsWidths, model_width, width_factor
    from edge_fl.recipes.own import use_code
    from edge_fl.recipes.recipe import open_recipe
    from exporter.extract.extract import Trained

    config, last = run.config, run.kept
    use_code(config.code)
    method = open_recipe(config.method, config.parameters).method
    narrowed = method.narrowed(manifest.layout) if isinstance(method, NarrowsBlocks) else None
    return Trained(
        weights=run.weights,
        run=config.run,
        method=config.method,
        round=last.round if last else 0,
        scores=last.scores if last else {},
        width=model_width(method),
        ordered=narrowed is not None or (isinstance(method, TrainsWidths) and method.ordered),
        widths=method.trained_widths if isinstance(method, TrainsWidths) else (),
        narrowed=narrowed,
        factor=width_factor(method, manifest, width),
    )


def _scores(run: "Run", bundle: "Bundle", trained: "Trained", wanted: "Wanted") -> dict[str, float]:
    """The scores of what is delivered on the run's test data as it is now; none where it is not at hand here."""
    from edge_fl.core.selection import masked
    from edge_fl.data.splits import test_samples
    from edge_fl.training.evaluator import open_evaluator

    shapes = {name: array.shape for name, array in trained.weights.items()}
    if any(shapes.get(tensor.name) != tensor.shape for tensor in bundle.layout.tensors):
        return {}  # weights of another model: what delivers them says so
    if bundle.layout.personal:  # of which each device has its own
        return {}
    try:
        samples = test_samples(run.config.test_data, bundle)
        if samples is None:
            return {}
        evaluator = open_evaluator(bundle, run.config, samples=samples, threads=1)
        if trained.narrowed is None:
            found = evaluator.score(trained.weights, wanted.width, trained.factor)
        else:
            found = evaluator.score(masked(trained.weights, trained.units(bundle.layout, wanted)), 1000)
    except RunError:  # weights that diverged: likewise
        return {}
    except (DataError, RuntimeMissingError) as error:
        typer.echo(f"not scored: {error}", err=True)
        return {}
    return {} if found is None else dict(found.scores)


def _json(path: Path, card: "Card") -> str:
    import msgspec

    return json_module.dumps({"path": str(path), **msgspec.to_builtins(card)})


def _text(path: Path, card: "Card") -> str:
    kept = ", ".join(f"{block}: {count} of {card.of[block]}" for block, count in card.units.items())
    from edge_fl.metrics.text import scores_text
    from exporter.extract.card import card_file

    measured = (
        f", {scores_text(card.scores)} on {card.test_data or 'the test data of the run'}" if card.scores else ""
    )
    return (
        f"{path}: {card.name} after {card.round} rounds of {card.method}, {card.parameters:,} trained numbers, "
        f"{card.size:,} bytes, within {card.parity:.1e} of what was trained{measured}\n"
        f"  units kept: {kept or 'all, as none can be left out'}\n"
        f"  {card_file(path)} says what goes in and what comes out"
    )
