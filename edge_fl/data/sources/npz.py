"""numpy's ``.npz``: ``npz:samples.npz`` with the arrays ``x`` and ``y``, and perhaps ``owner``.

A model of several inputs takes arrays of their names in place of ``x``.
"""

from pathlib import Path

from edge_fl.core.arrays import unpacked
from edge_fl.core.errors import DataError
from edge_fl.data.checked import checked_samples
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import FileSource, read_content

__all__ = ["SOURCE", "NpzSource"]


class NpzSource(FileSource):
    """Arrays in one file; nothing is unpickled."""

    def __init__(self, argument: str) -> None:
        options = argument.partition("?")[2]
        if options and not Path(argument).exists():
            raise DataError(f"A .npz file takes no options: leave '?{options[:80]}' out of '{argument[:80]}'.")
        super().__init__(Path(argument))

    def files(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> Samples:
        """Its ``x`` or inputs by name, its ``y``, and its ``owner`` where there is one."""
        content = read_content(self.path)  # what cannot be opened is told apart from what is damaged
        try:
            arrays = unpacked(content)
            inputs = {name: array for name, array in arrays.items() if name not in ("y", "owner")}
            if "y" not in arrays or not inputs:
                raise ValueError(f"it has {', '.join(arrays)[:80] or 'none'}")
        except ValueError as error:
            raise DataError(
                f"'{self.path}' is no .npz file with the array y, and x or inputs by name: "
                f"{' '.join(str(error).split()).strip(chr(39) + '.')}; write it with np.savez(FILE, x=x, y=y)."
            ) from error
        x = inputs["x"] if set(inputs) == {"x"} else inputs
        return checked_samples(x, arrays["y"], f"'{self.path}'", owner=arrays.get("owner"))


SOURCE = NpzSource
