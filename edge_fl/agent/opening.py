"""How a device opens a bundle: in a confined process of its own, or, where it is trusted, in the agent's."""

import logging
from collections.abc import Callable

from edge_fl.agent.settings import AgentSettings
from edge_fl.agent.state import empty_folder
from edge_fl.core.bundle import Bundle
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.worker.confinement import memory_share, told
from edge_fl.worker.process import WorkerProcess, WorkerSettings
from edge_fl.worker.work import LocalWork, Work

__all__ = ["Opener", "in_process_of_its_own", "in_this_process"]

_log = logging.getLogger(__name__)

Opener = Callable[[Bundle, AgentSettings], Work]
"""Opens a bundle for a device that runs so."""


def in_process_of_its_own(bundle: Bundle, settings: AgentSettings) -> Work:
    """Open a bundle whose programs are not trusted with this process."""
    memory = memory_share() if settings.program_memory is None else settings.program_memory
    worker = WorkerSettings(
        client=settings.client,
        runtime=settings.runtime,
        threads=settings.threads,
        folder=empty_folder(settings.state),
        memory=memory,
        seconds=settings.task_limit,
    )
    work = WorkerProcess(bundle, worker)
    sentence, whole = told(work.confinement)
    _log.log(logging.INFO if whole else logging.WARNING, "%s", sentence)
    return work


def in_this_process(open: Callable[..., Runtime] = open_runtime) -> Opener:
    """Opens bundles that are trusted with this process, by ``open`` (:func:`edge_fl.runtimes.base.open_runtime`)."""

    def opener(bundle: Bundle, settings: AgentSettings) -> Work:
        return LocalWork(settings.client, open(settings.runtime, bundle, threads=settings.threads))

    return opener
