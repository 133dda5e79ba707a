"""`edge-fl bench aggregate`: what sums cost here."""

from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Models, Output, show
from edge_fl.commands.progress import progress

__all__ = ["aggregate"]


_UPDATES = {"fashion-mnist-mlp": 100, "wikitext-2-lstm": 20}
"""The models that a goal is set for, and how many updates of each are a round."""


def aggregate(
    *,
    model: Models = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 20,
    output: Output = None,
    json: Json = False,
) -> None:
    """Aggregate and decode a round's updates on the coordinator, as ratios to a memory copy of the same bytes.

    Example: edge-fl bench aggregate -o docs/benchmarks/aggregate.md
    """
    from broker.measure.aggregate import bench_aggregate
    from exporter.measure.cases import find_case

    models = {name: (find_case(name).layout(), _UPDATES.get(name, 20)) for name in model or _UPDATES}
    named = "".join(f" --model {name}" for name in model or ())
    with progress("bench aggregate") as report:
        result = bench_aggregate(models, repeats, report, named)
    show(result, output, as_json=json)
