"""Weights that a run starts from in place of its bundle's: those that another run ended with, or a file.

They are copied into the run's folder, so that a run that is killed in its first round starts from the same again.
"""

import hashlib
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from broker.run_folder import FINAL, check_no_run
from broker.settings import RunSettings
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.core.selection import Weights
from edge_fl.runs.config import RunConfig

__all__ = ["keep_initial_weights", "kept_initial_weights", "open_initial_weights", "read_weights"]

_log = logging.getLogger(__name__)
_KEPT = "initial.safetensors"


def open_initial_weights(bundle: Bundle, config: RunConfig) -> dict[str, NDArray[np.float32]]:
    """What a new run starts from; raises ConfigError as :func:`read_weights`."""
    if config.initial_weights is None:
        return bundle.weights()
    if config.privacy is not None:
        _log.warning(
            "the privacy loss counts this run alone: what its initial weights tell of devices comes on top"
        )
    return read_weights(Path(config.initial_weights), bundle)


def keep_initial_weights(root: Path, config: RunConfig, weights: Weights) -> str:
    """Copy what the new run of the folder ``root`` starts from, where that is not the bundle's.

    Returns the copy's SHA-256, or nothing. Raises StateError when the folder holds a run, or cannot be written.
    """
    if config.initial_weights is None:
        return ""
    check_no_run(root)
    content = save(dict(weights))
    try:
        root.mkdir(parents=True, exist_ok=True)
        write_atomically(root / _KEPT, content)
    except OSError as error:
        raise StateError(f"The run folder '{root}' cannot be written: {error.strerror}.") from error
    return hashlib.sha256(content).hexdigest()


def kept_initial_weights(root: Path, bundle: Bundle, settings: RunSettings) -> dict[str, NDArray[np.float32]]:
    """What the run of the folder ``root`` started from; raises StateError when the copy is lost or damaged."""
    if not settings.initial:
        return bundle.weights()
    path = root / _KEPT
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StateError(
            f"'{path}', from which the run starts, cannot be read ({error.strerror}): restore it."
        ) from error
    if hashlib.sha256(content).hexdigest() != settings.initial:
        raise StateError(f"'{path}', from which the run starts, is damaged: restore it.")
    return load(content)


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
    path = place
    try:
        path = place / FINAL if place.is_dir() else place
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        held = load(path.read_bytes())
    except (OSError, ValueError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"The initial weights '{path}' cannot be read ({reason}): they are a .safetensors file, or a run's that "
            "has ended."
        ) from error
    except KeyError as error:  # a type that numpy lacks
        raise ConfigError(f"The initial weights '{path}' are of type {error}; give float32.") from error
    shapes = {tensor.name: tensor.shape for tensor in bundle.layout.tensors}
    if own := sorted(held.keys() & {tensor.name for tensor in bundle.layout.personal}):
        raise ConfigError(
            f"The initial weights '{path}' hold '{own[0]}', which each device has for itself: export the model with "
            "--weights of that file, so that devices start from there."
        )
    if odd := sorted(shapes.keys() ^ held.keys()):
        lacks = "lack" if odd[0] in shapes else "hold"
        raise ConfigError(
            f"The initial weights '{path}' are of another model, as they {lacks} '{odd[0]}': give weights that were "
            "trained from this bundle."
        )
    for name, shape in shapes.items():
        tensor = held[name]
        if tensor.shape != shape or tensor.dtype != np.float32:
            raise ConfigError(
                f"The initial weights '{path}' hold '{name}' as {tensor.dtype} of shape {tensor.shape}: give float32 "
                f"of shape {shape}, as the bundle has it."
            )
        if not np.isfinite(tensor).all():
            raise ConfigError(f"The initial weights '{path}' hold NaN or infinity in '{name}': give others.")
    return {name: held[name] for name in shapes}
