"""Files that are read again: bundles, settings, models, what a device keeps, identities."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from broker.checkpoints import Checkpoints
from broker.settings import RunSettings, read_settings
from edge_fl.agent.kept_model import KeptModel, read_model, write_model
from edge_fl.agent.state import MethodState, StateFolder, owner_of
from edge_fl.core.arrays import packed
from edge_fl.core.bundle import MANIFEST, parse_manifest
from edge_fl.core.errors import BundleError, ConfigError, EdgeFLError, StateError
from edge_fl.core.frozen import FROZEN
from edge_fl.identity.file import identity_text, read_identity
from edge_fl.methods.base import METHODS
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.wire.signed import Successor
from fuzz.campaign import BUNDLE
from fuzz.target import Prepared

__all__ = [
    "authority",
    "believed",
    "checkpoint",
    "identity",
    "kept_model",
    "manifest",
    "method_state",
    "owner",
    "parameters",
    "settings",
]


def folder() -> Path:
    """An empty folder, in memory where there is such a place."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="edge-fl-fuzz-", dir=shared if os.access(shared, os.W_OK) else None))


def _reads(read: Callable[[], Any], file: Path, declared: type[EdgeFLError], *seeds: bytes) -> Prepared:
    """``read`` what ``file`` has; it may raise what is ``declared``, and nothing else. What it has now is read."""
    seeds = seeds or (file.read_bytes(),)
    file.write_bytes(seeds[0])
    read()

    def run(data: bytes) -> None:
        file.write_bytes(data)
        with contextlib.suppress(declared):
            read()

    return Prepared(run, seeds)


def manifest() -> Prepared:
    """A bundle's manifest, as a device fetches it."""

    def run(data: bytes) -> None:
        with contextlib.suppress(BundleError):
            parse_manifest(data, where="manifest")

    axes = [[{"block": None, "inner": 2}]]
    own = {"name": "own", "shape": [2], "rows": axes, "units": axes}
    small = {
        "schema": 3,
        "name": "m",
        "dataset": "",
        "classes": 2,
        "input": {"shape": [2], "dtype": "float32"},
        "target": {"shape": [], "dtype": "int64"},
        "loss": "cross_entropy",
        "layout": {"blocks": [], "tensors": [], "personal": [own]},
        "programs": {"onnx": [{"file": "a", "kind": "eval", "inputs": ["x"], "outputs": ["y"]}]},
        "parity": {},
        "tools": {},
        "files": {"a": {"sha256": "0" * 64, "size": 3}, FROZEN: {"sha256": "0" * 64, "size": 8}},
    }
    return Prepared(run, [(Path(os.environ[BUNDLE]) / MANIFEST).read_bytes(), msgspec.json.encode(small)])


def settings() -> Prepared:
    """What a run was begun with, out of its record."""
    config = RunConfig(
        run="r",
        method="fedavg",
        parameters={},
        rounds=1,
        clients_per_round=1,
        local_steps=1,
        batch=1,
        lr=0.1,
        seed=0,
    )

    def run(data: bytes) -> None:
        with contextlib.suppress(EdgeFLError):
            read_settings(data, RunSettings, Path("run"))

    return Prepared(run, [msgspec.json.encode(RunSettings(bundle="b", manifest="m", config=config))])


def parameters() -> Prepared:
    """A task's parameters of each method; the first byte says of which."""
    names = sorted(METHODS.names())

    def run(data: bytes) -> None:
        try:
            given = msgspec.json.decode(data[1:], type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        with contextlib.suppress(ConfigError):
            open_recipe(names[data[0] % len(names)], given)

    seeds = [bytes([n]) + b'{"dropout": [0.5, 500], "tau": 3, "lr": 1e9}' for n in range(len(names))]
    return Prepared(run, seeds)


def checkpoint() -> Prepared:
    """A model after a round: its weights, or after an odd first byte what the server had learned."""
    root = folder()
    held = Checkpoints(str(root))
    held.keep(1, {"w": np.ones((2, 3), np.float32)}, {"learned": np.arange(3)})
    files = [root / "00001.safetensors", root / "00001.learned.npz"]
    sound = [file.read_bytes() for file in files]

    def run(data: bytes) -> None:
        which = data[0] % 2 if data else 0
        files[which].write_bytes(data[1:])
        files[1 - which].write_bytes(sound[1 - which])
        with contextlib.suppress(StateError):
            held.model(1)

    return Prepared(run, [bytes([which]) + content for which, content in enumerate(sound)])


def kept_model() -> Prepared:
    """The final model that a device keeps."""
    root = folder()
    write_model(root, KeptModel("r", "0" * 64, 500, 500, b"frame", packed({"own": np.ones(2, np.float32)})))
    return _reads(lambda: read_model(root), root / "model.msgpack", StateError)


def method_state() -> Prepared:
    """What a method remembers on a device."""
    root = folder()
    state = MethodState(root)
    state.stage(3, {"memory": np.arange(4, dtype=np.float32)})
    state.accept()
    return _reads(state.last, root / "accepted.npz", StateError)


def owner() -> Prepared:
    """Whose a state folder is."""
    root = folder()
    StateFolder(root, "a").close()
    return _reads(lambda: owner_of(root), root / "identity.json", StateError)


def believed() -> Prepared:
    """Which coordinator a device believes by now."""
    from broker.provision.authority import Authority
    from edge_fl.agent.envelope import SignedEnvelope

    file, state = Authority.create(folder(), hosts=["localhost"], port=8883).device("tea"), folder()
    SignedEnvelope(file, state)
    return _reads(lambda: SignedEnvelope(file, state), state / "coordinator.json", StateError)


def identity() -> Prepared:
    """An identity's file."""
    file = folder() / "identity.pem"
    kinds = ("CERTIFICATE", "PRIVATE KEY", "CERTIFICATE")
    pem = "".join(f"-----BEGIN {kind}-----\nMII=\n-----END {kind}-----\n" for kind in kinds)
    successors = [Successor(bytes(32), bytes(64))]
    text = identity_text(
        "tea", "mqtts://localhost:8883", pem=pem, fleet="home", coordinator=bytes(32), successors=successors
    )
    return _reads(lambda: read_identity(file), file, ConfigError, text.encode())


def authority() -> Prepared:
    """What a certificate authority remembers, beside its key and certificate."""
    from broker.provision.authority import Authority

    root = folder()
    Authority.create(root, hosts=["localhost"], port=8883)
    return _reads(lambda: Authority.open(root), root / "issued.json", StateError)
