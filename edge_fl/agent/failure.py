"""What the coordinator is told of a task that a device cannot do, or would rather not do now."""

import logging
from typing import Literal, get_args

from edge_fl.core.errors import DeclinedError, EdgeFLError, printable
from edge_fl.core.registry import as_ours
from edge_fl.wire.messages import (
    DECLINED,
    LONGEST_REASON,
    AggregationRequest,
    CollectStatistics,
    Evaluate,
    Failed,
    Request,
    Task,
)

__all__ = ["failure_of"]

_log = logging.getLogger(__name__)
_WHAT: dict[type, Literal["train", "evaluate", "collect_statistics", "aggregate"]] = {
    Task: "train",
    Evaluate: "evaluate",
    CollectStatistics: "collect_statistics",
    **dict.fromkeys(get_args(AggregationRequest), "aggregate"),
}


def failure_of(task: Task | Request, error: Exception) -> Failed:
    """The message, of which the log is told, too; of what is not ours with the place in its owner's code."""
    if not isinstance(error, EdgeFLError):
        _log.error("this error is not one of a task", exc_info=error)
    error = as_ours(error)
    what, declined = _WHAT[type(task)], isinstance(error, DeclinedError)
    if declined:
        _log.info("round %d: declined to %s: %s", task.round, what, error)
    else:
        _log.error("round %d: failed to %s: %s", task.round, what, error)
    code, reason = DECLINED if declined else str(error.exit_code), printable(str(error), LONGEST_REASON)
    return Failed(task.run, task.round, code, reason, what)
