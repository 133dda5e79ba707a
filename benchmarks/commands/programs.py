"""`edge-fl bench parity`, `support`, `fine-tuning-step` and `frozen`: what runtimes make of models and operations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from edge_fl.commands.measure_options import Json, Models, Output, Runtimes, show
from edge_fl.commands.progress import progress

if TYPE_CHECKING:
    from exporter.frozen_dtype import FrozenDType

__all__ = ["fine_tuning_step", "frozen", "parity", "support"]

Results = Annotated[Path, typer.Option(help="Keeps what was found, so that the next run only does the rest.")]


def parity(
    *,
    model: Models = None,
    runtime: Runtimes = None,
    optimizer: Annotated[
        list[str] | None, typer.Option(help="sgd, momentum or adam; repeat for several [default: all].")
    ] = None,
    narrowed: Annotated[
        bool, typer.Option("--narrowed", help="The models with few units, in seconds each.")
    ] = False,
    results: Results = Path("parity.json"),
    output: Output = None,
    json: Json = False,
) -> None:
    """How closely each runtime trains each model as torch does, by the proof that every export passes.

    Example: edge-fl bench parity --narrowed -o docs/benchmarks/parity.md
    """
    from benchmarks.parity import OPTIMIZERS, ProofSetting, bench_parity
    from exporter.measure.exported import chosen_runtimes
    from exporter.zoo import model_names

    setting = ProofSetting(
        models=tuple(model or model_names()),
        runtimes=chosen_runtimes(runtime or ()),
        optimizers=tuple(optimizer or OPTIMIZERS),
        narrowed=narrowed,
    )
    with progress("bench parity") as report:
        result = bench_parity(setting, results, report)
    show(result, output, as_json=json)


def support(
    *,
    runtime: Runtimes = None,
    architectures: Annotated[
        bool, typer.Option("--architectures", help="Public models of torchvision, timm and transformers instead.")
    ] = False,
    case: Annotated[list[str] | None, typer.Option(help="A line of the table; repeat for several.")] = None,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for one export.")] = 1800,
    memory_limit: Annotated[int, typer.Option(min=100, help="MB for one export.")] = 20_000,
    results: Results = Path("support.json"),
    output: Output = None,
    json: Json = False,
) -> None:
    """Export a tiny model around each layer and operation for each runtime, and tabulate what comes of it.

    Example: edge-fl bench support -o docs/support.md
    """
    from benchmarks.support.architectures import require_libraries
    from benchmarks.support.suites import SUITES
    from benchmarks.support.table import bench_support
    from benchmarks.support.trial import Limits
    from exporter.measure.exported import chosen_runtimes

    suite = "architectures" if architectures else "layers"
    if architectures:
        require_libraries()
    known = {held.name for held in SUITES[suite].cases}
    if unknown := [name for name in case or () if name not in known]:
        raise typer.BadParameter(
            f"there is no line '{unknown[0]}' in {', '.join(sorted(known))}", param_hint="--case"
        )
    with progress("bench support") as report:
        result = bench_support(
            suite,
            chosen_runtimes(runtime or ()),
            results,
            report,
            names=case or (),
            limits=Limits(seconds=time_limit, memory_mb=memory_limit),
        )
    show(result, output, as_json=json)


def fine_tuning_step(
    *,
    runtime: Runtimes = None,
    width: Annotated[int, typer.Option(min=8, help="Features of a token.")] = 192,
    heads: Annotated[int, typer.Option(min=2, help="Heads of a layer; they divide the width.")] = 6,
    depth: Annotated[int, typer.Option(min=1, help="Layers.")] = 4,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 30,
    output: Output = None,
    json: Json = False,
) -> None:
    """One step of a vision transformer that trains all, half of its heads, adapters, or its head alone.

    Example: edge-fl bench fine-tuning-step --runtime onnx --runtime executorch -o docs/benchmarks/fine-tuning-step.md
    """
    from benchmarks.fine_tuning_step import FineTuningSetting, bench_fine_tuning_step

    if width % heads:
        raise typer.BadParameter(f"{heads} heads do not divide a width of {width}", param_hint="--heads")
    setting = FineTuningSetting(tuple(runtime or ("onnx", "executorch")), width, heads, depth, threads, repeats)
    with progress("bench fine-tuning-step") as report:
        result = bench_fine_tuning_step(setting, report)
    show(result, output, as_json=json)


def frozen(
    *,
    width: Annotated[int, typer.Option(min=64, help="Features of a token, 64 a head.")] = 768,
    depth: Annotated[int, typer.Option(min=1, help="Layers.")] = 12,
    vocabulary: Annotated[int, typer.Option(min=2, help="Words.")] = 16_000,
    agents: Annotated[int, typer.Option(min=1, help="Devices, a process each.")] = 10,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds.")] = 20,
    frozen_dtype: Annotated[
        list[str] | None,
        typer.Option(
            help="Store frozen matrices as float32, float16 or int8; repeat for several [default: float32]."
        ),
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """A large frozen model with small adapters on real agents: memory, what is fetched, time.

    Example: edge-fl bench frozen -o docs/benchmarks/frozen.md
    """
    from benchmarks.frozen import FrozenSetting, bench_frozen

    if width % 64:
        raise typer.BadParameter(f"a head has 64 features, which do not divide {width}", param_hint="--width")
    dtypes = cast("tuple[FrozenDType, ...]", tuple(frozen_dtype or ["float32"]))  # its export checks them
    setting = FrozenSetting(width, depth, vocabulary, agents, rounds, dtypes)
    with progress("bench frozen") as report:
        result = bench_frozen(setting, report)
    show(result, output, as_json=json)
