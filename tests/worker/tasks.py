"""Tasks for programs in a process of their own."""

from pathlib import Path

import numpy as np

from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.pattern import Pattern
from edge_fl.data.held_out import Split
from edge_fl.data.registry import load_dataset
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import Task
from edge_fl.worker.process import WorkerSettings

RUN, CLIENT = "run-1", "client-1"
TRAIN = load_dataset("digits").train
DATA = Split(TRAIN.take(np.arange(100)), TRAIN.take(np.arange(100, 140)))
MEMORY = 512 << 20


def settings(folder: Path, *, runtime: str = "onnx", memory: int = MEMORY, seconds: float = 120) -> WorkerSettings:
    folder.mkdir(parents=True, exist_ok=True)
    return WorkerSettings(client=CLIENT, runtime=runtime, folder=folder, memory=memory, seconds=seconds)


def model(bundle: Bundle, version: int = 0) -> bytes:
    header = Header(kind="model", run=RUN, round=version + 1, version=version, layout="", method="fedavg")
    return encode_frame(header, Pattern.full(bundle.layout), bundle.weights())


def task(content: bytes, method: str = "fedavg", *, round: int = 1, seed: int = 7, **parameters: object) -> Task:
    return Task(
        run=RUN,
        round=round,
        accepted=0,
        model=ref_of(content),
        method=method,
        parameters=parameters,
        steps=4,
        batch=20,
        lr=0.1,
        seed=seed,
        tier=0,
    )
