"""Every way edge-fl refuses: one sentence to the user, one documented exit code (docs/exit-codes.md)."""

from typing import ClassVar

__all__ = [
    "BrokerError",
    "BundleError",
    "ConfigError",
    "DataError",
    "DeclinedError",
    "EdgeFLError",
    "FrameError",
    "LoginRefusedError",
    "MemoryLimitError",
    "ModelError",
    "ParityError",
    "PortError",
    "RefusedError",
    "RunError",
    "RuntimeMissingError",
    "StateError",
    "SubscriptionRefusedError",
    "UnsupportedModelError",
    "printable",
    "said",
]


def said(error: BaseException) -> str:
    """What an error of another library says, in one line without a full stop, to stand inside a sentence of ours; the
    name of its kind where it says nothing.
    """
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def printable(text: str, most: int) -> str:
    """At most so many characters of what a stranger says, without those that would move a terminal's cursor or end a
    line of a log.
    """
    shown = "".join(c if c.isprintable() else " " for c in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


class EdgeFLError(Exception):
    """A refusal the user can act on; ``str(error)`` is the one sentence shown.

    ``exit_code`` is what the command line exits with. 1 is left to faults of edge-fl itself, 2 to wrong
    usage (as typer has it).
    """

    exit_code: ClassVar[int] = 1


class ModelError(EdgeFLError):
    """The model file or function cannot be found, or raises."""

    exit_code = 10


class UnsupportedModelError(EdgeFLError):
    """The model holds an operation or a layer that the exporter cannot mask or a runtime cannot train."""

    exit_code = 11


class ParityError(EdgeFLError):
    """An exported program does not compute what torch computes, so no bundle was written."""

    exit_code = 12


class BundleError(EdgeFLError):
    """A bundle is missing, damaged, or of a kind this version does not know."""

    exit_code = 13


class DataError(EdgeFLError):
    """A data set, or a device's own data, is unknown, damaged, not to be had, or does not fit the model."""

    exit_code = 14


class ConfigError(EdgeFLError):
    """Settings that make no sense, alone or together; an unknown method or parameter."""

    exit_code = 15


class BrokerError(EdgeFLError):
    """The MQTT broker cannot be reached or does not answer."""

    exit_code = 16


class LoginRefusedError(BrokerError):
    """The broker does not let this client in: user or password are wrong."""


class SubscriptionRefusedError(BrokerError):
    """The broker lets this client in, and not hear what it has to."""


class PortError(EdgeFLError):
    """The port of the embedded broker, or of metrics, is taken."""

    exit_code = 17


class RuntimeMissingError(EdgeFLError):
    """The runtime asked for is not installed or cannot be compiled, or the bundle holds no program for it."""

    exit_code = 18


class RunError(EdgeFLError):
    """A run could not be finished: too few devices came, or answered in time."""

    exit_code = 19


class DeclinedError(RunError):
    """A device would rather not work now; it may be asked again later."""


class FrameError(EdgeFLError):
    """Bytes from outside that are no valid frame or message.

    Parameters
    ----------
    code
        The reason as a rejection code (docs/protocol.md), counted and sent back to the device.
    sentence
        What is wrong, for a person.
    """

    exit_code = 20

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code

    def __reduce__(self) -> tuple[type["FrameError"], tuple[str, str]]:
        """How it gets from one process to another."""
        return FrameError, (self.code, str(self))


class StateError(EdgeFLError):
    """A state or run folder, a log, a record or a place for models cannot be used, or belongs to another."""

    exit_code = 21


class RefusedError(EdgeFLError):
    """The coordinator refused this device; the sentence carries its reason."""

    exit_code = 22


class MemoryLimitError(EdgeFLError):
    """The memory that a device has does not suffice."""

    exit_code = 23
