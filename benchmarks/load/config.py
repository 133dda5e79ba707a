"""The runs that benchmarks of many devices are made of.

Apart from ``child.py``, which measured processes import: what comes from ``cases.py`` brings torch, and its memory.
"""

from typing import Any

from edge_fl.runs.config import RunConfig
from exporter.measure.cases import BATCH

__all__ = ["patient_config"]


def patient_config(
    run: str, method: str, parameters: dict[str, Any], *, rounds: int, selected: int, registered: int, wait: float
) -> RunConfig:
    """Rounds of one step that wait for everyone: for the ``registered`` devices to come, then for all ``selected``."""
    return RunConfig(
        run=run,
        method=method,
        parameters=parameters,
        rounds=rounds,
        clients_per_round=selected,
        min_clients=registered,
        local_steps=1,
        batch=BATCH,
        lr=0.1,
        seed=0,
        quorum=1.0,
        deadline=wait,
        wait=wait,
    )
