"""edge-fl: federated learning that trains, and uploads, only the weight rows each device was given.

Importing this package needs numpy and msgspec alone, and imports neither: a name below is imported when it is used.
``docs/design.md`` draws the house; ``docs/protocol.md`` is the wire.
"""

from typing import Any

__version__ = "0.1.0"

_NAMED = "edge_fl.recipes.named"
_TARGETS = {
    "Access": "edge_fl.transport.access:Access",
    "Bundle": "edge_fl.core.bundle:Bundle",
    "Compressor": "edge_fl.compressors.base:Compressor",
    "Demands": "edge_fl.agent.demands:Demands",
    "Device": "edge_fl.agent.device:Device",
    "EdgeFLError": "edge_fl.core.errors:EdgeFLError",
    "Method": "edge_fl.methods.base:Method",
    "Metric": "edge_fl.metrics.base:Metric",
    "Optimizer": "edge_fl.core.bundle:Optimizer",
    "Privacy": "edge_fl.runs.privacy:Privacy",
    "Run": "edge_fl.runs.run:Run",
    "SecureAggregation": "edge_fl.runs.config:SecureAggregation",
    "Source": "edge_fl.data.sources.base:DataSource",
    "World": "device_sim.simulation.settings:World",
    "export": "exporter.api:export",
    "extract": "exporter.extract.api:extract",
    "extract_adapters": "exporter.extract.api:extract_adapters",
    "read_identity": "edge_fl.identity.file:read_identity",
    "serve": "broker.api:serve",
    "simulate": "device_sim.simulation.api:simulate",
} | {
    name: f"{_NAMED}:{name}"
    for name in [
        "AFD",
        "DGC",
        "EFD",
        "STC",
        "TCS",
        "FedAvg",
        "FedBIAD",
        "FedDrop",
        "FedMP",
        "FedPAQ",
        "FjORD",
        "FlexLoRA",
        "Fractional",
        "HetLoRA",
        "HeteroFL",
        "RandK",
        "ServerMomentum",
        "SignSGD",
        "TopK",
        "VarDrop",
    ]
}

__all__ = ["__version__", *_TARGETS]  # noqa: PLE0604  (the names of _TARGETS)


def __getattr__(name: str) -> Any:
    if name not in _TARGETS:
        raise AttributeError(f"module 'edge_fl' has no attribute '{name}'")
    from edge_fl.core.packages import ours

    module, _, member = _TARGETS[name].partition(":")
    found = globals()[name] = getattr(ours(module), member)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
