"""`edge-fl export`: from a PyTorch model to a bundle, or to a report of what it would be."""

import fnmatch
import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from edge_fl.commands.options import Scores, runtime_name
from edge_fl.commands.progress import progress
from edge_fl.core.bundle import Optimizer
from edge_fl.core.errors import ConfigError, RuntimeMissingError
from edge_fl.core.share import parse_widths
from edge_fl.data.class_names import read_class_names
from exporter.commands.export_check import describe_findings, show_findings
from exporter.commands.export_options import (
    parse_metadata,
    target_for,
)

if TYPE_CHECKING:
    from torch import nn

    from edge_fl.core.bundle import Bundle
    from exporter.target import Target
    from exporter.tokenizer_file import TokenizerFile

__all__ = ["export"]

_ZOO = "zoo:"


def export(
    *,
    model: Annotated[
        str, typer.Argument(help="path/to/file.py:function, which builds the torch.nn.Module; or zoo:NAME.")
    ],
    dataset: Annotated[
        str | None,
        typer.Option(help="The data set whose samples and classes the model fits [default: the zoo model's]."),
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option(help="Without a data set: one sample, such as 3x32x32, or 64 for 64 tokens.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="That sample is of tokens (int64), not of float32.")
    ] = False,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Of a model that takes several inputs: NAME:SHAPE:DTYPE, such as attention_mask:64:int64; repeat for "
            "each.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Devices give texts: a tokenizer.json, or a Hugging Face folder such as distilbert/."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Without a data set: classes of the outputs, such as 10.")
    ] = None,
    target_shape: Annotated[
        str | None,
        typer.Option(
            help="Without a data set: one float32 target in place of classes, such as 4; beside --classes one class "
            "a position, such as 32x32."
        ),
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            help="onnx, executorch, torch-eager, ort-training or executorch-training; repeat for several "
            "[default: onnx, or all with --check].",
            parser=runtime_name,
        ),
    ] = None,
    widths: Annotated[
        str,
        typer.Option(
            help="Kept shares of each block, such as 0.2,0.4,1.0: for each, static runtimes get programs, and "
            "--batch-norm per-width statistics."
        ),
    ] = "1.0,0.8,0.6,0.5,0.4",
    batch: Annotated[int, typer.Option(help="Samples a training batch, for the same runtimes.")] = 20,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Train step: plain, noise, distil or vardrop; repeat for several [default: plain]."),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="sgd or adam.")] = "sgd",
    momentum: Annotated[float, typer.Option(help="SGD's, such as 0.9.")] = 0.0,
    weight_decay: Annotated[
        float, typer.Option(help="Added to gradients times the weights, such as 0.0005.")
    ] = 0.0,
    clip_norm: Annotated[
        float | None, typer.Option(help="Largest norm of all gradients together, such as 1.0 [default: any].")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="A name such as masked_cross_entropy, or path/to/file.py:function [default: the data set's]."
        ),
    ] = None,
    batch_norm: Annotated[
        str,
        typer.Option(
            help="tracked (statistics travel), per-width (and each of --widths has its own, as FjORD), static (they "
            "stay as exported) or frozen (and training normalises by them, too)."
        ),
    ] = "tracked",
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns of tables that the input is read from, in order, such as speed,load [default: those of "
            "--normalise-by]."
        ),
    ] = None,
    class_names: Annotated[
        Path | None,
        typer.Option(help="A file with the name of a class a line, such as labels.txt; travels along."),
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, such as team=vision, travels along; repeat for several.")
    ] = None,
    score: Scores = None,
    name: Annotated[
        str | None, typer.Option(help="What to call the bundle [default: the file's or zoo's name].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds torch before the model is built.")] = 0,
    weights: Annotated[
        Path | None,
        typer.Option(help="Start from these: a .safetensors file, or a Hugging Face folder such as distilbert/."),
    ] = None,
    new: Annotated[
        list[str] | None,
        typer.Option(
            help="With --weights: parameters that begin as they are built, such as 'head.*' of a new head; repeat for "
            "several."
        ),
    ] = None,
    no_dropout: Annotated[
        bool, typer.Option("--no-dropout", help="Set the model's own dropout to 0, for shorter steps.")
    ] = False,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Normalise the input: the mean of each channel, such as 0.485,0.456,0.406, or one for all."
        ),
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="With --mean: the standard deviations, such as 0.229,0.224,0.225.")
    ] = None,
    normalise_by: Annotated[
        str | None,
        typer.Option(help="In place of both: measure them on this data, such as 'csv:train.csv?label=state'."),
    ] = None,
    channel_axis: Annotated[
        int, typer.Option(help="Of a sample: 0 for images, signals and vectors, -1 for series of features.")
    ] = 0,
    train: Annotated[
        list[str] | None,
        typer.Option(
            help="Train these alone, and freeze the rest: parameters such as 'head.*', bias, norm, or adapters such as "
            "lora:q_proj,v_proj:r=8; repeat for several [default: what the model does not freeze]."
        ),
    ] = None,
    personal: Annotated[
        list[str] | None,
        typer.Option(
            help="Each device trains these and never sends them: parameters such as 'head.*', bias or norm; repeat for "
            "several [default: none]."
        ),
    ] = None,
    cache_features: Annotated[
        bool,
        typer.Option(
            "--cache-features",
            help="Devices compute once a sample what lies below the first trained layer, and keep it.",
        ),
    ] = False,
    frozen_dtype: Annotated[
        str,
        typer.Option(
            help="Store frozen matrices as float32, or rounded as float16 or int8: half or a quarter to fetch."
        ),
    ] = "float32",
    micro_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Samples that a step looks at together, for less memory [default: the batch]."),
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="Modules whose activations a step computes a second time, such as 'layers.*': less memory, a third "
            "more time; repeat for several [default: none]."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The bundle's folder.")] = Path("bundle"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Say what would be masked, at what cost, and what no runtime can train."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
) -> None:
    """Export a model: its layout, initial weights, and a train step for each runtime, proven equal to torch's.

    Example: edge-fl export examples/fashion_mlp.py:build --dataset fashion-mnist --runtime onnx -o bundle/

    Example: edge-fl export zoo:femnist-cnn --runtime executorch --widths 0.2,0.6,1.0 --optimizer adam --clip-norm 1

    Example: edge-fl export model.py:build --input-shape 3x32x32 --classes 10 --batch-norm static --check

    Example: edge-fl export model.py:build --input-shape 6 --classes 3 --normalise-by 'csv:train.csv?label=state'

    Example: edge-fl export bert.py:build --weights bert/ --tokenizer bert/ --input input_ids:64:int64 --classes 4

    Example: edge-fl export zoo:femnist-cnn --weights pretrained.safetensors --train 'lora:*:r=8' -o bundle/
    """
    module, default = _built(model, seed)
    module = _prepared(module, weights, new or [], train or [])
    options: dict[str, Any] = {
        "widths": parse_widths(widths),
        "batch": batch,
        "variants": tuple(dict.fromkeys(variant or ["plain"])),
        "optimizer": Optimizer(cast(Any, optimizer), momentum, weight_decay, clip_norm),
        "batch_norm": batch_norm,
        "columns": tuple(name.strip() for name in columns.split(",")) if columns else (),
        "class_names": read_class_names(class_names),
        "metadata": parse_metadata(metadata or []),
        "scores": tuple(score or ()),
        "personal": tuple(personal or ()),
        "tokenizer": _tokenizer(tokenizer),
        "cache_features": cache_features,
        "frozen_dtype": frozen_dtype,
        "micro_batch": micro_batch or 0,
        "checkpoint": tuple(checkpoint or ()),
        "dropout": not no_dropout,
        **({} if loss is None else {"loss": loss}),
    }
    shapes = (input_shape, classes, target_shape)
    of_its_own = shapes != (None, None, None) or input_ or dataset is not None
    data = (dataset if of_its_own else default, *shapes)
    from exporter.export import check_model, count_programs, export_bundle
    from exporter.lower import LOWERINGS
    from exporter.target import OWN_GRADIENTS

    able = [each for each in LOWERINGS.names() if not (checkpoint or micro_batch) or each not in OWN_GRADIENTS]
    runtimes = tuple(dict.fromkeys(runtime or (able if check else ["onnx"])))
    target = target_for(data, name or _named(model), runtimes, options, tokens=tokens, inputs=input_ or ())
    module, target = _with_one_input(module, target, (mean, std, normalise_by), channel_axis)
    if check:
        traced = len({1000, *target.widths}) if "onnx" in runtimes else 0
        with progress("checking", len(runtimes) + traced + 2) as report:
            found = check_model(module, target, report=report)
        if json:
            typer.echo(json_module.dumps(describe_findings(found)))
        else:
            show_findings(found)
        return
    programs = count_programs(target)
    with progress("exporting", programs + len(runtimes) + 3) as report:
        bundle = export_bundle(module, target, output, report=report)
    typer.echo(_written(bundle, as_json=json))


def _built(model: str, seed: int) -> "tuple[nn.Module, str | None]":
    """The model, and the data set it is for where that is known."""
    try:
        import torch

        from exporter.model_file import load_model
        from exporter.zoo import find_model
    except ImportError as error:
        raise RuntimeMissingError(f"Exporting needs the extra `edge-fl[export]`: {error}.") from error
    torch.manual_seed(seed)
    if model.startswith(_ZOO):
        entry = find_model(model.removeprefix(_ZOO))
        return entry.build(), entry.dataset
    return load_model(model), None


def _prepared(model: "nn.Module", weights: Path | None, new: list[str], train: list[str]) -> "nn.Module":
    """The model with pretrained weights but for ``new`` parameters, of which ``train`` is trained."""
    from exporter.fine_tuning import train_only
    from exporter.pretrained import load_weights

    if weights is None:
        if new:
            raise ConfigError("--new says what --weights leaves as it is: give both, or leave it out.")
        return train_only(model, train)
    loaded = load_weights(model, weights, new)
    typer.echo(loaded.text, err=True)
    chosen = train_only(model, train)
    trained = {name for name, parameter in chosen.named_parameters() if parameter.requires_grad}
    parameters = {name for name, _ in model.named_parameters()}
    frozen = [name for name in loaded.new if name in parameters and name not in trained]
    if train and frozen:
        pattern = next(pattern for pattern in new if fnmatch.fnmatchcase(frozen[0], pattern))
        typer.echo(
            f"warning: '{frozen[0]}' is new and not trained: it stays as it was drawn; add --train '{pattern}'",
            err=True,
        )
    return chosen


def _with_one_input(
    model: "nn.Module", target: "Target", given: tuple[str | None, str | None, str | None], axis: int
) -> "tuple[nn.Module, Target]":
    """The model as it takes one array: several inputs cut out of it, or one normalised by ``--mean`` and ``--std``, or
    by ``--normalise-by``.

    Data names the bundle's columns where nobody else does.
    """
    from edge_fl.data.fit import arranged
    from edge_fl.data.given import samples_of
    from exporter.named_inputs import with_named_inputs
    from exporter.normalise import measure, parse_numbers, with_normalised_input

    mean, std, data = given
    if target.inputs and given == (None, None, None):
        return with_named_inputs(model, target.inputs), target
    if given == (None, None, None):
        return model, target
    if target.inputs:
        raise ConfigError("A model of several inputs normalises them itself: leave the normalisation out.")
    if data is not None and (mean, std) == (None, None):
        samples = arranged(samples_of(data), target.columns)
        target = replace(target, columns=target.columns or samples.columns)
        numbers = measure(samples.x, target.input, axis=axis)
    elif mean is None or std is None or data is not None:
        raise ConfigError("Give --mean and --std, or --normalise-by DATA, which measures both.")
    else:
        numbers = parse_numbers(mean, "--mean"), parse_numbers(std, "--std")
    return with_normalised_input(model, *numbers, target.input, axis=axis), target


def _tokenizer(path: Path | None) -> "TokenizerFile | None":
    if path is None:
        return None
    from exporter.tokenizer_file import read_tokenizer

    return read_tokenizer(path)


def _named(model: str) -> str:
    return model.removeprefix(_ZOO) if model.startswith(_ZOO) else Path(model.rpartition(":")[0]).stem


def _written(bundle: "Bundle", *, as_json: bool) -> str:
    from edge_fl.commands.dropout import dropout_text
    from edge_fl.core.frozen import FROZEN, count_frozen

    layout, manifest = bundle.layout, bundle.manifest
    parity = {runtime: result.weights for runtime, result in manifest.parity.items()}
    programs = {runtime: len(made) for runtime, made in manifest.programs.items()}
    if as_json:
        found = {"bundle": str(bundle.root), "layout": layout.digest, "programs": programs, "parity": parity}
        return json_module.dumps(found)
    lines = [f"{bundle.root}: {manifest.name}, {layout.size} numbers, {layout.units} droppable units"]
    if layout.frozen:
        size = manifest.files[FROZEN].size
        lines += [
            f"  {count_frozen(layout)} more numbers are frozen, in {size / 1e3:.4g} kB that devices fetch once"
        ]
    if manifest.dropout:
        lines += [f"  {dropout_text({place.mask.name: place.p for place in manifest.dropout})}"]
    if manifest.features is not None:
        lines += [f"  {manifest.features.shape[0]} features a sample are computed once"]
    if layout.personal:
        lines += [f"  {sum(tensor.size for tensor in layout.personal)} more numbers stay on each device"]
    lines += [
        f"  {runtime}: {programs[runtime]} programs, within {off:.1e} of torch" for runtime, off in parity.items()
    ]
    return "\n".join(lines)
