"""edge-fl: federated learning that trains, and uploads, only the weight rows each device was given.

The core needs numpy and msgspec alone. ``docs/design.md`` draws the house; ``docs/protocol.md`` is the wire.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
