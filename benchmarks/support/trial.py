"""One case exported for one runtime, in a process that ends when its time or its memory does."""

import multiprocessing
import os
import re
import select
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import msgspec
import torch
from msgspec.structs import replace

from benchmarks.support.case import SupportCase
from benchmarks.support.suites import SUITES
from device_sim.emulation.memory_limit import limit_memory, told_as_memory
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import EdgeFLError, MemoryLimitError
from exporter.export import Target, export_bundle
from exporter.measure.exported import exporter_digest
from exporter.sentence import first_line

__all__ = ["Limits", "Trial", "tried"]

_SCRATCH = re.compile(re.escape(gettempdir()) + "/[^/]+/")  # where a program lay when it was proven
_WIDTHS = (1000, 500)
_BATCH = 6
_PRELOADED = (__name__, "exporter.lower.onnx", "exporter.lower.executorch", "onnxruntime")


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one case in one runtime.

    Parameters
    ----------
    exporter
        The digest of the exporter that tried.
    difference
        The largest relative one of any weight, output or loss from torch's.
    size
        Bytes of the train step's program at full width.
    blocks
        Droppable units by the layer whose outputs they are.
    refused
        The exporter's sentence, in place of all these.
    limited
        Whether a limit ended it, and another limit may show more.
    """

    case: str
    runtime: str
    exporter: str
    difference: float = 0.0
    size: int = 0
    blocks: dict[str, int] = {}
    refused: str = ""
    limited: bool = False


@dataclass(frozen=True)
class Limits:
    """Of one trial: ``seconds`` on the clock, and ``memory_mb`` besides what the libraries hold."""

    seconds: float
    memory_mb: int


def tried(suite: str, case: str, runtime: str, limits: Limits) -> Trial:
    """Export one case of a suite for one runtime, in a process forked from one that has loaded the libraries."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sending, suite, case, runtime, limits), daemon=True)
    process.start()
    sending.close()  # so that the child's end closes the pipe
    in_time = receiving.poll(limits.seconds)
    if not in_time:
        process.kill()
    try:
        found = msgspec.json.decode(receiving.recv_bytes(), type=Trial)
    except EOFError:
        found = None
    process.join()  # its memory is free again before the next one starts
    if found is not None:
        return found
    reason = f"the process ended with exit code {process.exitcode}" if in_time else "the time limit ended it"
    return Trial(case, runtime, exporter_digest(), refused=f"Fault: {reason}.", limited=True)


def _child(sending: Connection, suite: str, case: str, runtime: str, limits: Limits) -> None:
    threading.Thread(target=_end_with, args=(sending.fileno(),), daemon=True).start()
    limit_memory(limits.memory_mb)
    sending.send_bytes(msgspec.json.encode(_tried(SUITES[suite].case(case), runtime, limits)))


def _end_with(pipe: int) -> None:
    """End this process once nobody reads the pipe: it is no child of whom it works for."""
    closed = select.poll()
    closed.register(pipe, 0)
    closed.poll()
    os._exit(1)


def _tried(case: SupportCase, runtime: str, limits: Limits) -> Trial:
    torch.manual_seed(0)
    target = Target(
        "support",
        "made-up",
        case.input,
        case.classes,
        (runtime,),
        target=case.target,
        widths=_WIDTHS,
        batch=_BATCH,
        loss="sequence_cross_entropy" if case.target.shape else "cross_entropy",
        batch_norm=case.batch_norm,
    )
    trial = Trial(case.name, runtime, exporter_digest())
    try:
        with told_as_memory(limits.memory_mb, f"the export of '{case.name}'"), TemporaryDirectory() as scratch:
            return _measured(trial, export_bundle(case.build(), target, Path(scratch) / "bundle"))
    except MemoryLimitError as error:
        return replace(trial, refused=str(error), limited=True)
    except EdgeFLError as error:
        return replace(trial, refused=_SCRATCH.sub("", str(error)))
    except Exception as error:  # a fault of the exporter belongs in the table more than any refusal
        return replace(trial, refused=f"Fault: {type(error).__name__}, {first_line(error)}.")


def _measured(trial: Trial, bundle: Bundle) -> Trial:
    parity = bundle.manifest.parity[trial.runtime]
    program = bundle.manifest.step_program(trial.runtime, "plain", bundle.layout.sizes, _BATCH)
    assert program is not None
    return replace(
        trial,
        difference=max(parity.weights, parity.outputs),
        size=bundle.manifest.files[program.file].size,
        blocks=bundle.layout.sizes,
    )
