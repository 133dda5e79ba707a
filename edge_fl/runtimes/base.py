"""What the agent knows of a runtime, and how a runtime is opened by name.

A runtime knows no more than how to load one program: a callable from arrays to arrays. What the arrays mean is in
the bundle's manifest, and :class:`TrainStep` and :class:`Evaluation` read it there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import FROZEN_TENSOR, NEW, TENSOR, Bundle, Program
from edge_fl.core.errors import EdgeFLError, MemoryLimitError, RunError, RuntimeMissingError, said
from edge_fl.core.pattern import Pattern
from edge_fl.core.registry import Registry
from edge_fl.core.selection import Weights
from edge_fl.core.width_statistics import one_hot

__all__ = [
    "RUNTIMES",
    "Compiled",
    "Evaluation",
    "Runtime",
    "Stepped",
    "TrainStep",
    "check_programs",
    "open_runtime",
]

_FEATURES_AT_A_TIME = 20  # samples: what lies below is the larger part of a model
Compiled = Callable[[Sequence[NDArray[Any]]], list[NDArray[np.float32]]]
"""A loaded program: the arrays of ``Program.inputs`` in order to those of ``Program.outputs``."""


@dataclass(frozen=True)
class Stepped:
    """What a step gives: the loss before it, ``sum(weight * loss) / sum(weight)``, the new kept entries of every
    tensor, and the optimiser's new state, by ``SLOT.TENSOR``.
    """

    loss: float
    tensors: dict[str, NDArray[np.float32]]
    slots: dict[str, NDArray[np.float32]] = field(default_factory=dict)


class TrainStep:
    """One compact training program, ready to run.

    Parameters
    ----------
    program
        Says what the arrays are.
    run
        The program, loaded.
    widths
        Those that BatchNorm has statistics for, if it has them for each (the manifest's ``statistic_widths``).
    frozen
        What the pattern leaves of every frozen tensor, by its name.
    """

    def __init__(
        self,
        program: Program,
        run: Compiled,
        widths: Sequence[int] = (),
        frozen: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._run, self._widths = run, widths
        self._frozen = {f"{FROZEN_TENSOR}{name}": array for name, array in (frozen or {}).items()}
        self._inputs = program.inputs
        carried = [name.removeprefix(NEW) for name in program.outputs[1:]]
        self._tensors = [name.removeprefix(TENSOR) for name in carried if name.startswith(TENSOR)]
        self._slots = [name for name in carried if not name.startswith(TENSOR)]
        self._slots_first = next((i for i, name in enumerate(carried) if name in self._slots), len(carried))

    def fresh_slots(self, tensors: Weights) -> dict[str, NDArray[np.float32]]:
        """The state that a step gives anew at the start of a round: zeros of the shapes of the kept ``tensors``.

        That is right for an optimiser's; ``log_alpha.TENSOR`` (variational dropout) at 0 is a dropout rate of 1/2.
        """
        return {slot: np.zeros_like(tensors[slot.partition(".")[2]]) for slot in self._slots}

    def __call__(
        self,
        tensors: Weights,
        batch: Batch,
        *,
        lr: float,
        scale: float = 1.0,
        slots: Weights | None = None,
        number: int = 1,
        width: int = 1000,
        extra: Mapping[str, NDArray[Any]] | None = None,
    ) -> Stepped:
        """Run one step on kept entries.

        Parameters
        ----------
        tensors
            The kept entries of every tensor (``Selection.of(pattern, "units")``).
        lr
            The step size.
        scale
            Multiplies the outputs of every block's layer: 1 / (1 - p) keeps their expectation.
        slots
            The optimiser's state, from :meth:`fresh_slots` or the step before.
        number
            Which step since the state was fresh, from 1 (Adam's t).
        width
            The width, in thousandths, whose statistics BatchNorm brings up to date where it has them for each
            (:func:`edge_fl.core.width_statistics.width_of`).
        extra
            Arrays by the names of further inputs of the program.
        """
        values: dict[str, NDArray[Any]] = {
            "x": batch.x,
            "y": batch.y,
            "sample_weight": batch.weight,
            "lr": np.array(lr, dtype=np.float32),
            "scale": np.array(scale, dtype=np.float32),
            "number": np.array(number, dtype=np.float32),
            **_width_input(self._widths, width),
            **self._frozen,
            **(slots or {}),
            **(extra or {}),
        }
        feed = [tensors[name[len(TENSOR) :]] if name.startswith(TENSOR) else values[name] for name in self._inputs]
        loss, *new = self._run(feed)
        return Stepped(
            float(loss),
            {**tensors, **dict(zip(self._tensors, new[: self._slots_first], strict=True))},
            dict(zip(self._slots, new[self._slots_first :], strict=True)),
        )


class Evaluation:
    """The full model's forward program, ready to run on any batch.

    A static program's batch is cut from it piece by piece; the last is padded with samples of weight 0.

    Parameters
    ----------
    program
        Says what the arrays are, and what batch it was compiled for.
    run
        The program, loaded.
    widths
        As :class:`TrainStep`'s.
    frozen
        Every frozen tensor by its name.

    Attributes
    ----------
    batch
        The batch that it was compiled for; None for any.
    """

    def __init__(
        self,
        program: Program,
        run: Compiled,
        widths: Sequence[int] = (),
        frozen: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._run, self._widths = run, widths
        self._tensors = [n.removeprefix(TENSOR) for n in program.inputs if n.startswith(TENSOR)]
        named = (n.removeprefix(FROZEN_TENSOR) for n in program.inputs if n.startswith(FROZEN_TENSOR))
        self._frozen = [(frozen or {})[name] for name in named]
        self.batch = program.batch

    def __call__(self, tensors: Weights, batch: Batch, *, width: int = 1000) -> tuple[float, NDArray[np.float32]]:
        """The mean loss over the batch, and the model's outputs ``[B, ...]``.

        ``width`` (thousandths) says whose statistics BatchNorm normalises by, where it has them for each; the tensors
        are those of the full model at any width (:func:`edge_fl.core.selection.masked`).
        """
        held = [*(tensors[name] for name in self._tensors), *self._frozen]
        last = _width_input(self._widths, width).values()
        if self.batch is None:
            loss, outputs = self._run([*held, batch.x, batch.y, batch.weight, *last])
            return float(loss), outputs
        total, pieces = 0.0, []
        for start in range(0, len(batch.x), self.batch):
            piece = slice(start, start + self.batch)
            x, y = (_padded(array[piece], self.batch) for array in (batch.x, batch.y))
            weight = np.zeros(self.batch, dtype=np.float32)
            weight[: len(batch.weight[piece])] = batch.weight[piece]
            if not weight.any():
                weight[0] = 1  # a mean over nothing would be NaN; it counts for nothing below
            loss, outputs = self._run([*held, x, y, weight, *last])
            total += float(loss) * float(batch.weight[piece].sum())
            pieces.append(outputs[: len(batch.x[piece])])
        return total / float(batch.weight.sum()), np.concatenate(pieces)


class Runtime(ABC):
    """A bundle opened in one runtime; each program is loaded once and kept.

    Parameters
    ----------
    bundle
        Verified; must hold programs for this runtime.
    threads
        CPU threads a step may use.
    """

    name: str
    """As the manifest's ``programs`` and the command line have it."""
    package: str
    """The distribution that brings what it runs in."""

    def __init__(self, bundle: Bundle, *, threads: int = 1) -> None:
        self.bundle = bundle
        self.threads = threads
        self._loaded: dict[str, Compiled] = {}

    @classmethod
    def installed(cls) -> str:
        """What it runs in here, by name and version; raises RuntimeMissingError where it cannot run."""
        try:
            return f"{cls.package} {metadata.version(cls.package)}"
        except metadata.PackageNotFoundError as error:
            raise RuntimeMissingError(f"The package {cls.package} is not installed here.") from error

    @abstractmethod
    def load(self, program: Program) -> Compiled:
        """Load one program of the bundle; raises BundleError where the runtime cannot take it."""

    def settle(self) -> None:  # noqa: B027  (most have nothing to do)
        """The last step of a round, or the last batch of an evaluation, was made, or failed: emulated hardware has it
        take the time that it would.
        """

    def train_step(self, pattern: Pattern, batch: int, variant: str = "plain") -> TrainStep:
        """The ``variant`` program that trains the units that ``pattern`` keeps on batches of ``batch`` samples.

        Raises RuntimeMissingError, naming what the bundle holds, when it holds none that fits.
        """
        counts = pattern.counts
        program = self.bundle.manifest.step_program(self.name, variant, counts, batch)
        if program is None:
            held = [p for p in self.bundle.manifest.programs[self.name] if p.kind == "step"]
            options = "; ".join(f"'{p.variant}' of {_words(p.kept or {})} at batch {p.batch}" for p in held)
            raise RuntimeMissingError(
                f"The bundle has no {self.name} '{variant}' program that trains {_words(counts)} units at batch "
                f"{batch}; it holds {options or 'none'}."
            )
        widths, frozen = self.bundle.manifest.statistic_widths, self.bundle.frozen.kept(pattern)
        return TrainStep(program, self._program(program), widths, frozen)

    def evaluator(self) -> Evaluation:
        """The full model's evaluation program; raises RuntimeMissingError when the bundle holds none."""
        program = self.bundle.manifest.eval_program(self.name)
        if program is None:
            raise RuntimeMissingError(f"The bundle has no {self.name} program that evaluates.")
        widths, frozen = self.bundle.manifest.statistic_widths, self.bundle.frozen.whole
        return Evaluation(program, self._program(program), widths, frozen)

    def features(self, x: NDArray[Any]) -> NDArray[Any]:
        """What steps and evaluation take of samples ``[n, *input]``, at least one: ``[n, *features]``, or ``x`` itself.

        Raises RuntimeMissingError when the bundle holds no program that makes them.
        """
        manifest = self.bundle.manifest
        if manifest.features is None:
            return x
        program = manifest.features_program(self.name)
        if program is None:
            raise RuntimeMissingError(f"The bundle has no {self.name} program that makes features.")
        run, named = self._program(program), (name.removeprefix(FROZEN_TENSOR) for name in program.inputs[:-1])
        frozen = [self.bundle.frozen.whole[name] for name in named]
        size = program.batch or _FEATURES_AT_A_TIME
        found = np.empty((len(x), *manifest.features.shape), manifest.features.dtype)
        for start in range(0, len(x), size):
            piece = x[start : start + size]
            (made,) = run([*frozen, _padded(piece, size) if program.batch else piece])
            whole = (size if program.batch else len(piece), *manifest.features.shape)
            if made.shape != whole or made.dtype != found.dtype:
                raise RunError(
                    f"The program '{program.file}' gives features of another shape than the manifest's."
                )
            found[start : start + len(piece)] = made[: len(piece)]
        return found

    def _program(self, program: Program) -> Compiled:
        if program.file not in self._loaded:
            self._loaded[program.file] = _refusing(self.name, program.file, self.load(program))
        return self._loaded[program.file]


def _refusing(runtime: str, file: str, run: Compiled) -> Compiled:
    """``run``, whose failures are ours: a device tells of them, and lives on.

    It does not hold the Runtime, which holds it: programs are to go with their runtime's last reference, for
    ExecuTorch changes its threads only when none is left.
    """

    def refusing(inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        try:
            return run(inputs)
        except EdgeFLError:
            raise
        except MemoryError as error:
            raise MemoryLimitError(
                f"The memory here does not suffice for '{file}' in {runtime}: {said(error)}."
            ) from error
        except Exception as error:  # a runtime's own, of any kind
            raise RunError(f"{runtime} cannot run '{file}': {said(error)}.") from error

    return refusing


def _width_input(widths: Sequence[int], width: int) -> dict[str, NDArray[np.float32]]:
    return {"width": one_hot(widths, width)} if widths else {}


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())


def _padded(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Fill up with the first sample, which a model can take."""
    return np.concatenate([array, np.repeat(array[:1], size - len(array), axis=0)])


RUNTIMES: Registry[Runtime] = Registry(
    "runtime", "edge_fl.runtimes", "RUNTIME", Runtime, error=RuntimeMissingError
)
"""What this version knows, installed or not."""


def check_programs(name: str, bundle: Bundle) -> None:
    """Raise RuntimeMissingError where ``bundle`` has no programs of a runtime that is known here."""
    held = sorted(bundle.manifest.programs)
    if name in RUNTIMES.names() and name not in held:
        raise RuntimeMissingError(
            f"The bundle holds programs for {', '.join(held)}, not for '{name}': export it with --runtime "
            f"{name.replace('_', '-')}, or train with one of those."
        )


def open_runtime(name: str, bundle: Bundle, *, threads: int = 1, **others: Any) -> Runtime:
    """Open ``bundle`` in the runtime ``name``; raises RuntimeMissingError where that cannot be.

    ``others`` are what this runtime alone takes.
    """
    check_programs(name, bundle)
    return RUNTIMES.find(name)(bundle, threads=threads, **others)
