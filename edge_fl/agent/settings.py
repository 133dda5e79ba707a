"""How one device runs."""

from dataclasses import dataclass, field
from pathlib import Path

from edge_fl.agent.demands import Demands
from edge_fl.transport.address import BrokerAddress

__all__ = ["AgentSettings"]


@dataclass(frozen=True)
class AgentSettings:
    """How one device runs.

    ``tier`` is its class of hardware (0, 1, ...), ``once`` ends the process with the run, ``connect_timeout`` are
    the seconds for which the first connection is tried (afterwards the agent never gives up). ``test_share`` of its
    samples are held out of training (:class:`edge_fl.data.held_out.HeldOut`). With ``keep_model`` the final model of a
    run is kept in the state folder, in the place of the one before (:mod:`edge_fl.agent.kept_model`).

    Tasks that do not meet ``demands`` fail. Where a bundle's programs have a process of their own, a task ends after
    ``task_limit`` seconds, and programs may take ``program_memory`` bytes
    (:func:`edge_fl.worker.confinement.memory_share` when None).
    """

    broker: BrokerAddress
    client: str
    state: Path
    runtime: str = "onnx"
    tier: int = 0
    once: bool = False
    threads: int = 1
    connect_timeout: float = 15.0
    fleet: str = "edge-fl"
    test_share: float = 0.0
    keep_model: bool = False
    task_limit: float = 3600.0
    program_memory: int | None = None
    demands: Demands = field(default_factory=Demands)
