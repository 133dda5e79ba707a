"""A run's adapters as Hugging Face's PEFT keeps them: ``adapter_config.json`` and ``adapter_model.safetensors``."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from edge_fl.core.adapters import DOWN, UP
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Tensor
from edge_fl.core.selection import Selection
from edge_fl.core.width_statistics import trained_width
from exporter.extract.extract import Trained, Wanted, as_delivered, check_trained, of_width

__all__ = ["extract_adapter"]

_CONFIG, _MODEL = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


def extract_adapter(bundle: Bundle, trained: Trained, wanted: Wanted, output: Path) -> dict[str, Any]:
    """Write the adapters, and what else was trained beside them, for ``peft.PeftModel.from_pretrained``.

    The gain of an adapter stays alpha / r of the rank that the bundle has, so one of k ranks states an alpha of
    k * alpha / r.

    Parameters
    ----------
    wanted
        Of which the width says how many ranks each adapter keeps.
    output
        A folder.

    Returns
    -------
    What ``adapter_config.json`` holds.

    Raises
    ------
    ConfigError
        When the bundle has no adapters, the width is beyond what was trained or cuts more than ranks, or a tensor
        beside the adapters is no module's.
    RunError
        When the weights are not of the bundle's model, or not finite.
    StateError
        When ``output`` cannot be written.
    """
    gains = bundle.manifest.adapters
    if not gains:
        raise ConfigError(
            f"'{bundle.manifest.name}' has no adapters, which come of export --train lora:LAYERS:r=8: leave --adapter "
            "out."
        )
    check_trained(bundle, trained, wanted)
    trained = as_delivered(bundle, trained)
    kept = _kept(bundle, trained, wanted)
    for tensor in bundle.layout.trained.tensors:
        if not tensor.name.endswith((DOWN, UP)):
            _check_beside(tensor, kept[tensor.name], wanted.width / 1000)
    config = _config(gains, kept)
    held = {_PREFIX + name: np.ascontiguousarray(array) for name, array in sorted(kept.items())}
    write_atomically(output / _MODEL, safetensors.numpy.save(held))
    write_atomically(output / _CONFIG, json.dumps(config, indent=1).encode() + b"\n")
    return config


def _kept(bundle: Bundle, trained: Trained, wanted: Wanted) -> dict[str, NDArray[np.float32]]:
    """The kept entries of every tensor; of BatchNorm's statistics of each width, those of this one."""
    layout, rows = bundle.layout, bundle.manifest.statistic_widths
    pattern = trained.units(layout.trained, wanted)
    width = trained_width(layout, bundle.weights(), trained.weights, rows, trained.statistics(wanted))
    units, own = of_width(bundle, pattern, trained.weights, width)
    return Selection.of(units, "units").gather(own)


def _check_beside(tensor: Tensor, kept: NDArray[np.float32], width: float) -> None:
    """PEFT keeps whole copies of whole modules for what is trained beside adapters."""
    if not _module(tensor.name):
        raise ConfigError(
            f"PEFT has no place for '{tensor.name}', which is trained and no module's: extract without --adapter."
        )
    if not tensor.per_width and kept.shape != tensor.shape:
        raise ConfigError(
            f"Width {width:g} also cuts '{tensor.name}', which PEFT cannot load: extract the full width, or without "
            "--adapter."
        )


def _config(gains: Mapping[str, float], kept: Mapping[str, NDArray[np.float32]]) -> dict[str, Any]:
    """PEFT's LoraConfig: the first layer's rank and alpha, and patterns for layers with others."""
    ranks = {layer: len(kept[layer + DOWN]) for layer in gains}
    alphas = {layer: gain * ranks[layer] for layer, gain in gains.items()}
    first = next(iter(gains))
    others = sorted({_module(name) for name in kept if not name.endswith((DOWN, UP))})
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "bias": "none",
        "r": ranks[first],
        "lora_alpha": alphas[first],
        "lora_dropout": 0.0,
        "target_modules": "|".join(map(re.escape, gains)),
        "rank_pattern": {_exactly(layer): rank for layer, rank in ranks.items() if rank != ranks[first]},
        "alpha_pattern": {_exactly(layer): alpha for layer, alpha in alphas.items() if alpha != alphas[first]},
        "modules_to_save": others or None,
    }


def _exactly(layer: str) -> str:
    """PEFT reads a key as the end of a layer's name, and as a regular expression."""
    return f"^{re.escape(layer)}"


def _module(name: str) -> str:
    return name.rpartition(".")[0]
