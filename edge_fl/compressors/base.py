"""What a compressor is: kept differences to bytes and back, with what a device must remember in between.

A compressor is one module of this package, named as on the command line, that defines ``COMPRESSOR``, a
subclass of :class:`Compressor`. It sees the kept differences of all parameter tensors as one vector in the
layout's order; statistics travel beside it, uncompressed. What it remembers lives in full-model coordinates:
entries that a pattern leaves out keep theirs, and nothing is remembered of an update that was not accepted.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from edge_fl.core.parameters import opened
from edge_fl.core.randomness import Stream
from edge_fl.core.registry import Registry
from edge_fl.core.server_half import Weighting
from edge_fl.wire.context import Context, Decoder, Vector

__all__ = [
    "COMPRESSORS",
    "DECODERS",
    "ChoosesRule",
    "Compressed",
    "Compressor",
    "SendsChanges",
    "Shares",
    "WarmsUp",
    "compressor_names",
    "open_compressor",
]


@dataclass(frozen=True)
class Compressed:
    """The value section, and the new memory vectors by name (``[n]`` float32, as they came in)."""

    section: bytes
    memory: dict[str, Vector]


class Compressor(ABC):
    """One compressor with its parameters.

    It needs ``name``, ``Parameters``, :meth:`compress` and :meth:`decompress`. What few compressors do is a class each,
    in this module and in :mod:`edge_fl.core.server_half`, to extend besides.

    Parameters
    ----------
    parameters
        An instance of ``Parameters``.
    """

    name: ClassVar[str]

    memory: tuple[str, ...] = ()
    """The names of the vectors a device keeps between rounds (zero at first)."""

    Parameters: ClassVar[type[msgspec.Struct]]
    """Its parameters, with defaults; unknown ones are refused."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    @abstractmethod
    def compress(
        self, values: Vector, memory: Mapping[str, Vector], context: Context, stream: Stream
    ) -> Compressed:
        """Encode kept differences.

        Parameters
        ----------
        values
            ``[n]`` float32, not to be written to.
        memory
            What is remembered of these entries, by the names in ``memory``.
        context
            What the receiver knows too.
        stream
            Random draws of this client in this round.

        Raises
        ------
        RunError
            When ``values`` are not finite.
        FrameError
            ``values`` when what the server shared is not what :meth:`Shares.shared` can have given.
        """

    @staticmethod
    @abstractmethod
    def decompress(section: memoryview, context: Context) -> Vector:
        """Decode ``[n]`` numbers; what the context does not say the section says itself.

        Raises
        ------
        FrameError
            ``values`` when the section is not what :meth:`compress` can have written.
        """


class ChoosesRule(ABC):
    """A compressor whose encoding may ask for an aggregation rule of its own."""

    @property
    @abstractmethod
    def rule(self) -> str | None:
        """The rule in place of the method's, by name; None leaves the method's."""

    weighting: Weighting = "clients"
    """What an update counts under that rule."""


class SendsChanges(ABC):
    """A compressor whose server may send differences, too: what its model changed by, compressed."""

    @property
    @abstractmethod
    def sends_changes(self) -> bool:
        """Whether it does, as its parameters say."""

    @abstractmethod
    def encode_change(self, values: Vector) -> bytes:
        """The section of the ``[n]`` float32 by which all parameters are to change.

        What :meth:`Compressor.decompress` makes of it is what the model changes by, at both ends.
        """


class Shares(ABC):
    """A compressor whose server half tells devices something in each round."""

    @abstractmethod
    def shared(self) -> bytes:
        """What every device needs of it in the coming round, sent with the model."""


class WarmsUp(ABC):
    """A compressor that sends more in the first rounds of a run."""

    @property
    @abstractmethod
    def warmup_rounds(self) -> int:
        """How many they are."""


COMPRESSORS: Registry[Compressor] = Registry(
    "compressor", "edge_fl.compressors", "COMPRESSOR", Compressor, needs=("name", "Parameters")
)


def compressor_names() -> list[str]:
    """The compressors that are known here."""
    return COMPRESSORS.names()


def open_compressor(name: str, parameters: Mapping[str, Any]) -> Compressor:
    """The compressor ``name`` with ``parameters``; raises ConfigError on an unknown one of either."""
    compressor = COMPRESSORS.find(name)
    return compressor(opened(compressor.Parameters, parameters, f"compressor '{name}'"))


class _Decoders(Mapping[str, Decoder]):
    """Opened one by one, as they are needed."""

    def __getitem__(self, name: str) -> Decoder:
        if name not in compressor_names():
            raise KeyError(name)
        return COMPRESSORS.find(name).decompress

    def __iter__(self) -> Iterator[str]:
        return iter(compressor_names())

    def __len__(self) -> int:
        return len(compressor_names())


DECODERS: Mapping[str, Decoder] = _Decoders()
"""What reads each compressor's sections, for :func:`edge_fl.wire.frame.decode_frame`."""
