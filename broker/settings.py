"""What a fleet's run was begun with, as its record keeps it."""

import msgspec

from edge_fl.runs.config import RunConfig

__all__ = ["RunSettings"]


class RunSettings(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="serve"
):
    """What a run was begun with: ``bundle`` is its folder, ``manifest`` the SHA-256 of its manifest, ``models`` where
    models are kept (None: in the run folder), ``initial`` the SHA-256 of the initial weights that the run folder keeps
    (empty: the bundle's).
    """

    bundle: str
    manifest: str
    config: RunConfig
    models: str | None = None
    initial: str = ""
