"""What several commands read alike from their options."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edge_fl.core.errors import ConfigError

if TYPE_CHECKING:
    from edge_fl.runs.privacy import Privacy

__all__ = [
    "Attackers",
    "Batch",
    "CollectStatistics",
    "Database",
    "Dp",
    "DpClip",
    "DpDelta",
    "DpDevices",
    "DpEpsilon",
    "DpNoise",
    "DpQuantile",
    "Dropout",
    "EvaluateEvery",
    "ExactSums",
    "InitialWeights",
    "Json",
    "KeepBest",
    "LocalSteps",
    "Lr",
    "LrDrop",
    "LrWarmup",
    "MaxSamples",
    "Mode",
    "NormBound",
    "Output",
    "Partition",
    "Patience",
    "Recipe",
    "Robust",
    "Rounds",
    "Rule",
    "SamplesBound",
    "Scores",
    "Seed",
    "Settings",
    "StatisticsEvery",
    "TestData",
    "Widths",
    "given_again",
    "parameters_of",
    "privacy_of",
    "refuse_given",
    "refuse_settings",
    "runtime_name",
    "show_summary",
]

_OF_DP = ("dp_epsilon", "dp_noise", "dp_delta", "dp_clip", "dp_quantile", "dp_devices")
_BOUNDS = ("samples_bound", "norm_bound", "rollback")

Recipe = Annotated[
    str,
    typer.Option(
        "--method", help="A method, such as fjord+kd, a method+compressor, a compressor, or best-uplink."
    ),
]
Dropout = Annotated[str | None, typer.Option(help="Dropout rate p, or one a tier: 0.2,0.4,0.6.")]
Widths = Annotated[
    str | None,
    typer.Option(
        help="Share of units (fjord, efd) or ranks (hetlora, flexlora) that a tier can run, or one a tier: 1,0.6,0.4."
    ),
]
Mode = Annotated[str | None, typer.Option(help="rows (a kept row whole) or units (without dropped columns).")]
Rule = Annotated[str | None, typer.Option(help="Aggregation rule, where the method leaves a choice.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A parameter of the method, key=value.")]
Rounds = Annotated[int, typer.Option(help="Rounds.")]
LocalSteps = Annotated[int, typer.Option(help="Local SGD steps a round (V).")]
Batch = Annotated[int, typer.Option(help="Samples a batch.")]
Lr = Annotated[float, typer.Option(help="SGD step size.")]
LrDrop = Annotated[
    list[float] | None,
    typer.Option(help="A fraction of the rounds after which the step size is divided by 10; repeat for several."),
]
CollectStatistics = Annotated[
    bool | None,
    typer.Option(
        help="Devices collect the final model's BatchNorm statistics [default: where the method drops units, and with "
        "heterofl].",
        show_default=False,
    ),
]
StatisticsEvery = Annotated[
    int,
    typer.Option(min=1, help="Updates hold BatchNorm's statistics in every so many rounds, and in the last."),
]
LrWarmup = Annotated[
    int, typer.Option(min=0, help="The step size rises evenly to --lr over the first so many rounds.")
]
Partition = Annotated[
    str, typer.Option(help="How data is cut: iid, labels=5, shards=2, dirichlet=0.5, sizes=1 or owners.")
]
TestData = Annotated[
    str | None,
    typer.Option(
        help="Held-out data to score models on, as `edge-fl device --data` has it, such as "
        "'csv:held-out.csv?label=state' [default: the test split of the bundle's data set, if it has one].",
        show_default=False,
    ),
]
Scores = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        help="accuracy, top-3 (any k), macro-f1, mean-iou, perplexity, binary-accuracy, mae, rmse, r2, or "
        "file.py:function; repeat for several [default: what is usual for the loss].",
        show_default=False,
    ),
]
InitialWeights = Annotated[
    Path | None,
    typer.Option(
        help="Start from these weights in place of the bundle's: the folder of a run that has ended, or a .safetensors "
        "file of the bundle's tensors."
    ),
]
KeepBest = Annotated[
    str | None,
    typer.Option(
        help="Give the model of the round that is best by this score, or 'loss', on held-out data [default: the last]."
    ),
]
Patience = Annotated[
    int, typer.Option(help="With --keep-best: end after so many evaluations that are no better; 0 never does.")
]
MaxSamples = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Let a client that trains on more samples count for so many [default: its own].",
        show_default=False,
    ),
]
SamplesBound = Annotated[
    float,
    typer.Option(help="Let no client count for more than so many times the median client's samples; 0: no bound."),
]
NormBound = Annotated[
    float,
    typer.Option(
        help="Scale updates down that are larger than so many times the median update, and leave out those twice as "
        "large; 0: no bound."
    ),
]
Robust = Annotated[
    str | None,
    typer.Option(
        help="Withstand hostile devices: median, trimmed-mean, krum, multi-krum, geometric-median, or file.py:OBJECT.",
        show_default=False,
    ),
]
Attackers = Annotated[
    float, typer.Option(help="With --robust: the share of hostile devices to withstand, below 0.5.")
]
Dp = Annotated[
    Literal["central", "local"] | None,
    typer.Option(
        help="Differential privacy of devices: noise on the sum of clipped updates (central) or on each (local) "
        "[default: none].",
        show_default=False,
    ),
]
DpEpsilon = Annotated[
    float | None,
    typer.Option(help="With --dp: what all rounds may cost; edge-fl finds the noise.", show_default=False),
]
DpNoise = Annotated[
    float | None,
    typer.Option(help="With --dp: the noise's deviation in clips, in place of --dp-epsilon.", show_default=False),
]
DpDelta = Annotated[
    float, typer.Option(help="With --dp: the chance that the promise fails; less than 1 over the devices.")
]
DpClip = Annotated[float, typer.Option(help="With --dp: the largest L2 norm of an update.")]
DpQuantile = Annotated[
    float | None,
    typer.Option(help="With --dp central: let the clip follow this quantile of norms.", show_default=False),
]
DpDevices = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --dp central: devices of the whole fleet, of which each is asked with the same chance.",
        show_default=False,
    ),
]
ExactSums = Annotated[
    bool,
    typer.Option(
        "--exact-sums",
        help="Sum updates as whole numbers of 64 bits, from disk: the same bits in any order.",
    ),
]
EvaluateEvery = Annotated[
    int, typer.Option(help="Evaluate the model after every so many rounds, and after the last.")
]
Seed = Annotated[int, typer.Option(help="Keys every random draw of the run.")]
Database = Annotated[
    str | None,
    typer.Option(help="The run's record, postgresql+psycopg://... [default: SQLite in the run folder]."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Run folder [default: runs/ID].")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the summary as JSON, and nothing else on standard output.")
]


def parameters_of(
    *, dropout: str | None, widths: str | None, mode: str | None, rule: str | None, settings: Sequence[str] | None
) -> dict[str, Any]:
    """A method's parameters from ``--dropout 0.2,0.5``, ``--widths``, ``--mode``, ``--rule`` and ``--set``.

    A value of ``--set`` with a comma in it is a list: ``--set levels=a,b``.
    """
    named = {"dropout": dropout, "widths": widths, "mode": mode, "rule": rule}
    parameters: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    for setting in settings or ():
        key, found, value = setting.partition("=")
        if not found or not key:
            raise ConfigError(f"--set takes key=value, not '{setting}'.")
        parameters[key] = value.split(",") if "," in value else value
    return parameters


def privacy_of(
    context: typer.Context,
    dp: Literal["central", "local"] | None,
    *,
    epsilon: float | None,
    noise: float | None,
    delta: float,
    clip: float,
    quantile: float | None,
    devices: int | None = None,
) -> "Privacy | None":
    """What ``--dp`` and its options ask for; ConfigError where they make no sense, or bounds are given besides.

    With privacy the default bounds on one client have no part: the clip takes their place.
    """
    if dp is None:
        refuse_given(context, [name for name in _OF_DP if name in context.params], "belongs to --dp: give it, too")
        return None
    given = [name for name in _BOUNDS if context.params.get(name)]
    refuse_given(context, given, "has no part in a run with --dp, where the clip bounds each device: leave it out")
    from edge_fl.runs.privacy import Privacy

    return Privacy(dp, noise=noise, epsilon=epsilon, delta=delta, clip=clip, quantile=quantile, devices=devices)


def runtime_name(text: str) -> str:
    """A runtime as it is asked for: ``ort-training`` is ``ort_training``."""
    return text.replace("-", "_")


def show_summary(figures: Mapping[str, object], lines: Sequence[str], *, as_json: bool) -> None:
    """Print a finished run, for a script or for a person."""
    print(json.dumps(figures) if as_json else "\n".join(lines))


def refuse_settings(context: typer.Context, allowed: Sequence[str]) -> None:
    """A run is continued as it was begun: ConfigError when another option than those ``allowed`` was given by hand."""
    others = [name for name in context.params if name not in allowed and _source(context, name) == "COMMANDLINE"]
    refuse_given(context, others, "cannot be changed: a run is continued with its own settings")


def refuse_given(context: typer.Context, names: Sequence[str], why: str) -> None:
    """ConfigError, with the reason ``why``, when one of these options was given, wherever it comes from."""
    for name in names:
        if _source(context, name) in {"COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP"}:
            raise ConfigError(f"--{name.strip('_').replace('_', '-')} {why}.")


def given_again(context: typer.Context, names: Sequence[str]) -> str:
    """The options among ``names`` that were given, as a command line has them; a database may hold a password."""
    given = {
        name: context.params[name] for name in names if _source(context, name) in {"COMMANDLINE", "DEFAULT_MAP"}
    }
    texts = {
        name: "..." if name == "database" else shlex.quote(str(getattr(value, "value", value)))
        for name, value in given.items()
    }
    return "".join(
        f" --{name.replace('_', '-')}{'' if given[name] is True else f' {text}'}" for name, text in texts.items()
    )


def _source(context: typer.Context, name: str) -> str | None:
    source = context.get_parameter_source(name)
    return None if source is None else source.name
