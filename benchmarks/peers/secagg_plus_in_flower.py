"""One round of Flower's own SecAgg+ in one process; imported by itself, in Flower's environment.

The folder that it is given holds ``work.json`` (``clients``, ``leave``, ``shares``, ``threshold``, ``entries``,
``reach``) and gets ``found.json``. Flower's workflow and its client's mod run as they are; what is ours is a grid that
calls the mod in place of a network, leaves some clients out of the last two stages, and counts.
"""

import copy
import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import flwr
import flwr.compat.common.recorddict_compat as compat
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.task_identity import TaskIdentity


class _Proxy:
    """A client as a strategy knows it."""

    def __init__(self, node: int) -> None:
        self.node_id, self.cid = node, str(node)


class _Chosen(FedAvg):
    """Has every client train, and keeps what their sum comes to."""

    def __init__(self, nodes: Iterable[int]) -> None:
        super().__init__()
        self._nodes, self.mean = list(nodes), np.zeros(0)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        return [(_Proxy(node), FitIns(Parameters([], "numpy.ndarray"), {})) for node in self._nodes]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.mean = np.frombuffer(results[0][1].parameters.tensors[0][-8 * self.size :], dtype=np.float64)
        return None, {}


class _Grid:
    """Calls clients' mod in this process, and counts their processor time and the bytes of what is said."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._work, self.seconds = work, 0.0
        self.up, self.down = Counter[int](), Counter[int]()
        self._contexts: dict[int, Context] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.content = copy.deepcopy(message.content)  # as a network would
            stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
            self.down[node] += _size(message.content.config_records[RECORD_KEY_CONFIGS])
            gone = node <= self._work["leave"] and stage in (Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK)
            if gone:
                replies.append(Message(Error(0), reply_to=message))
                continue
            began = time.process_time()
            reply = secaggplus_mod(message, self._context(node), self._train)
            self.seconds += time.process_time() - began
            self.up[node] += _size(reply.content.config_records[RECORD_KEY_CONFIGS])
            replies.append(reply)
        return replies

    def _context(self, node: int) -> Context:
        if node not in self._contexts:
            self._contexts[node] = Context(1, node, {}, RecordDict(), {})
        return self._contexts[node]

    def _train(self, message: Message, context: Context) -> Message:
        values = np.random.default_rng(context.node_id).normal(0, 0.1, self._work["entries"])
        parameters = ndarrays_to_parameters([values.clip(-self._work["reach"], self._work["reach"])])
        result = FitRes(Status(Code.OK, ""), parameters, 100, {})
        return Message(compat.fitres_to_recorddict(result, True), reply_to=message)


def _size(record: ConfigRecord) -> int:
    """Bytes of a record as Flower counts them, which it does not for lists of nothing."""
    size: int = ConfigRecord({name: value for name, value in record.items() if value != []}).count_bytes()
    return size


def run(folder: str) -> None:
    """Make the round."""
    root = Path(folder)
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = (
        1  # which a message names, and only Flower's own processes have
    )
    work = json.loads((root / "work.json").read_text())
    grid, strategy = _Grid(work), _Chosen(range(1, work["clients"] + 1))
    strategy.size = work["entries"]
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: 1}),
            MAIN_PARAMS_RECORD: ArrayRecord(),
        }
    )
    context = LegacyContext(Context(1, 0, {}, state, {}), None, strategy, SimpleClientManager())
    workflow = SecAggPlusWorkflow(
        work["shares"], work["threshold"], max_weight=100, clipping_range=work["reach"], timeout=None
    )
    began = time.process_time()
    workflow(grid, context)
    seconds = time.process_time() - began
    there = range(work["leave"] + 1, work["clients"] + 1)
    each = [np.random.default_rng(n).normal(0, 0.1, work["entries"]) for n in there]
    error = float(
        np.abs(strategy.mean - np.mean([e.clip(-work["reach"], work["reach"]) for e in each], axis=0)).max()
    )
    found = {
        "version": flwr.__version__,
        "device": grid.seconds / work["clients"],
        "server": seconds - grid.seconds,
        "up": sum(grid.up[node] for node in there) / len(there),
        "down": sum(grid.down[node] for node in there) / len(there),
        "error": error,
    }
    (root / "found.json").write_text(json.dumps(found))
