"""What devices can fetch from the coordinator, by the SHA-256 of its bytes."""

from collections.abc import Collection, Mapping, Sequence

from edge_fl.core.bundle import MANIFEST, Bundle
from edge_fl.core.content import Ref, ref_of
from edge_fl.transport.transfer import cut

__all__ = ["Contents"]


class Contents:
    """The bundle's manifest and programs, the current model, and the changes that led to it.

    Parameters
    ----------
    bundle
        Its programs are read now, as they were verified; its weights are never given out.

    Attributes
    ----------
    manifest
        The reference under which devices fetch the manifest.
    size
        Bytes of all that can be fetched now.
    """

    def __init__(self, bundle: Bundle) -> None:
        raw = bundle.read(MANIFEST)
        self.manifest = ref_of(raw)
        self._held = {self.manifest.digest: cut(raw)}
        files = bundle.manifest.files
        names = {name for runtime in bundle.manifest.programs for name in bundle.manifest.program_files(runtime)}
        self._held |= {files[name].sha256: cut(bundle.read(name)) for name in names}
        self._current: dict[str, tuple[bytes, ...]] = {}
        self.size = self._bundle_size = _size(self._held)

    def offer_model(self, frame: bytes, held: Collection[str] = ()) -> Ref:
        """Replace the model that devices can fetch; of earlier ones those of the digests ``held`` can still be had."""
        self._current = {digest: chunks for digest, chunks in self._current.items() if digest in held}
        return self.offer_change(frame)

    def offer_change(self, frame: bytes) -> Ref:
        """Let devices fetch this frame, too, while the model is current."""
        ref = ref_of(frame)
        self._current[ref.digest] = cut(frame)
        self.size = self._bundle_size + _size(self._current)
        return ref

    def get(self, digest: str) -> tuple[bytes, ...] | None:
        """The chunks of the bytes of that digest, if they are to be had."""
        return self._current.get(digest) or self._held.get(digest)


def _size(held: Mapping[str, Sequence[bytes]]) -> int:
    return sum(len(chunk) for chunks in held.values() for chunk in chunks)
