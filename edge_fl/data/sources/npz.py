"""numpy's ``.npz``: ``npz:samples.npz`` with the arrays ``x`` and ``y``, and perhaps ``owner``."""

from pathlib import Path

from edge_fl.core.arrays import unpacked
from edge_fl.core.errors import DataError
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import FileSource, checked_samples, read_content

__all__ = ["SOURCE", "NpzSource"]


class NpzSource(FileSource):
    """Two arrays in one file; nothing is unpickled."""

    def __init__(self, argument: str) -> None:
        super().__init__(Path(argument))

    def files(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> Samples:
        """Its ``x`` and ``y``, and its ``owner`` where there is one."""
        content = read_content(self.path)  # what cannot be opened is told apart from what is damaged
        try:
            arrays = unpacked(content)
            if missing := {"x", "y"} - set(arrays):
                raise ValueError(f"{min(missing)} is not a file in the archive")
        except ValueError as error:
            raise DataError(
                f"'{self.path}' is no .npz file with the arrays x and y: "
                f"{' '.join(str(error).split()).strip(chr(39) + '.')}."
            ) from error
        return checked_samples(arrays["x"], arrays["y"], f"'{self.path}'", owner=arrays.get("owner"))


SOURCE = NpzSource
