"""Weights that a run starts from in place of its bundle's: those that another run ended with, or a file.

They are copied into the run's folder, so that a run that is killed in its first round starts from the same again.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from broker.run_folder import FINAL
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.core.selection import Weights
from edge_fl.runs.config import RunConfig

__all__ = ["keep_initial_weights", "kept_initial_weights", "open_initial_weights", "read_weights"]

_KEPT = "initial.safetensors"


def open_initial_weights(bundle: Bundle, config: RunConfig) -> dict[str, NDArray[np.float32]]:
    """What a new run starts from; raises ConfigError as :func:`read_weights`."""
    if config.initial_weights is None:
        return bundle.weights()
    return read_weights(Path(config.initial_weights), bundle)


def keep_initial_weights(root: Path, config: RunConfig, weights: Weights) -> None:
    """Copy what the run of the folder ``root`` starts from, where that is not the bundle's."""
    if config.initial_weights is not None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            write_atomically(root / _KEPT, save(dict(weights)))
        except OSError as error:
            raise StateError(f"The run folder '{root}' cannot be written: {error.strerror}.") from error


def kept_initial_weights(root: Path, bundle: Bundle, config: RunConfig) -> dict[str, NDArray[np.float32]]:
    """What the run of the folder ``root`` started from; raises ConfigError as :func:`read_weights`."""
    return bundle.weights() if config.initial_weights is None else read_weights(root / _KEPT, bundle)


def read_weights(place: Path, bundle: Bundle) -> dict[str, NDArray[np.float32]]:
    """The weights at ``place``, full float32 tensors by name, in the layout's order.

    Parameters
    ----------
    place
        A ``.safetensors`` file, or the folder of a run that has ended.
    bundle
        What is trained: its layout says which tensors there are, and of which shapes.

    Raises
    ------
    ConfigError
        When they cannot be read, are of another model, or not finite.
    """
    path = place / FINAL if place.is_dir() else place
    try:
        held = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"The initial weights '{path}' cannot be read ({reason}): they are a .safetensors file, or a run's that "
            "has ended."
        ) from error
    except KeyError as error:  # a type that numpy lacks
        raise ConfigError(f"The initial weights '{path}' are of type {error}; give float32.") from error
    shapes = {tensor.name: tensor.shape for tensor in bundle.layout.tensors}
    if odd := sorted(shapes.keys() ^ held.keys()):
        lacks = "lack" if odd[0] in shapes else "hold"
        raise ConfigError(
            f"The initial weights '{path}' are of another model than the bundle: they {lacks} '{odd[0]}'. Give weights "
            "that were trained from this bundle."
        )
    for name, shape in shapes.items():
        tensor = held[name]
        if tensor.shape != shape or tensor.dtype != np.float32:
            raise ConfigError(
                f"The initial weights '{path}' hold '{name}' as {tensor.dtype} of shape {tensor.shape}; the bundle has "
                f"float32 of shape {shape}."
            )
        if not np.isfinite(tensor).all():
            raise ConfigError(f"The initial weights '{path}' hold numbers in '{name}' that are not finite.")
    return {name: held[name] for name in shapes}
