"""What the agent knows of a runtime, and how a runtime is opened by name."""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl import runtimes
from edge_fl.bundle import Bundle, Program
from edge_fl.errors import RuntimeMissingError
from edge_fl.selection import Weights

__all__ = [
    "Batch",
    "EvalProgram",
    "Runtime",
    "TrainStep",
    "eval_program",
    "open_runtime",
    "runtime_names",
    "step_program",
]


@dataclass(frozen=True)
class Batch:
    """One batch: ``x`` ``[B, ...]`` float32, ``y`` ``[B]`` int64, ``weight`` ``[B]`` float32 (0 on padding)."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    weight: NDArray[np.float32]


class TrainStep(ABC):
    """One compact training program, ready to run."""

    @abstractmethod
    def __call__(
        self, weights: Weights, batch: Batch, *, lr: float, scale: float
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """Run one SGD step on kept entries.

        Parameters
        ----------
        weights
            The kept entries of every tensor (``Selection.of(pattern, "units")``), in the layout's order.
        scale
            Multiplies the outputs of every block's layer: 1 / (1 - p) keeps their expectation.

        Returns
        -------
        The loss before the step, ``sum(weight * loss) / sum(weight)``, and the new kept entries.
        """


class EvalProgram(ABC):
    """The full model's forward program, ready to run."""

    @abstractmethod
    def __call__(self, weights: Weights, batch: Batch) -> tuple[float, NDArray[np.float32]]:
        """The mean loss over the batch and the model's outputs ``[B, classes]``."""


class Runtime(ABC):
    """A bundle opened in one runtime.

    Parameters
    ----------
    bundle
        Verified; must hold programs for this runtime.
    threads
        CPU threads a step may use.
    """

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        self.bundle = bundle
        self.threads = threads

    @abstractmethod
    def train_step(self, counts: Mapping[str, int], batch: int, variant: str = "plain") -> TrainStep:
        """The ``variant`` program that trains ``counts`` kept units of each block on batches of ``batch`` samples.

        Raises RuntimeMissingError when the bundle holds none that fits.
        """

    @abstractmethod
    def evaluator(self) -> EvalProgram:
        """The full model's evaluation program."""


def step_program(bundle: Bundle, runtime: str, variant: str, counts: Mapping[str, int], batch: int) -> Program:
    """The ``variant`` train step of ``runtime`` for ``counts`` kept units of each block and ``batch`` samples.

    Raises RuntimeMissingError, naming what the bundle holds, when there is none.
    """
    program = bundle.manifest.step_program(runtime, variant, counts, batch)
    if program is None:
        held = [p for p in bundle.manifest.programs[runtime] if p.kind == "step"]
        options = "; ".join(f"{_words(p.kept or {})} at batch {p.batch}" for p in held) or "none"
        raise RuntimeMissingError(
            f"The bundle has no {runtime} '{variant}' program that trains {_words(counts)} units at batch {batch}; "
            f"it holds {options}."
        )
    return program


def eval_program(bundle: Bundle, runtime: str) -> Program:
    """The evaluation program of ``runtime``; raises RuntimeMissingError when the bundle holds none."""
    program = bundle.manifest.eval_program(runtime)
    if program is None:
        raise RuntimeMissingError(f"The bundle has no {runtime} program that evaluates.")
    return program


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())


def runtime_names() -> list[str]:
    """The runtimes this version knows, installed or not."""
    names = (module.name for module in pkgutil.iter_modules(runtimes.__path__))
    return sorted(name for name in names if name != "base" and not name.startswith("_"))


def open_runtime(name: str, bundle: Bundle, *, threads: int = 1) -> Runtime:
    """Open ``bundle`` in the runtime ``name``; raises RuntimeMissingError where that cannot be."""
    if name not in runtime_names():
        raise RuntimeMissingError(f"There is no runtime '{name}'; there are {', '.join(runtime_names())}.")
    if name not in bundle.manifest.programs:
        held = ", ".join(sorted(bundle.manifest.programs))
        raise RuntimeMissingError(f"The bundle holds programs for {held}, not for '{name}'.")
    try:
        module = importlib.import_module(f"edge_fl.runtimes.{name}")
    except ImportError as error:
        raise RuntimeMissingError(f"The runtime '{name}' is not installed here: {error}.") from error
    runtime: Runtime = module.RUNTIME(bundle, threads=threads)
    return runtime
