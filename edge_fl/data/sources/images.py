"""A folder of images, a subfolder a class: ``images:photos?shape=3x32x32&classes=names.txt``. It needs Pillow."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError, said
from edge_fl.data.checked import checked_samples
from edge_fl.data.class_names import read_class_names
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import FileSource, parse_shape, split_argument

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SOURCE", "ImageSource"]

_MODES = {1: "L", 3: "RGB"}
_MOST_PIXELS = 1 << 26  # a header of some bytes may claim any number, and each would be decoded and scaled
_DEEP = ("I", "F")  # Pillow would cut off what 8 bits do not hold


class ImageOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What images become.

    Parameters
    ----------
    shape
        1xHxW for grey, 3xHxW for colour: images of another size are scaled to it (bicubic, as Pillow has it).
    classes
        A file of class names, one a line, where subfolders are named by them; else they are named 0, 1, ...: a device
        without pictures of some class must not count the others differently.
    """

    shape: str
    classes: str = ""


class ImageSource(FileSource):
    """Images by class, and by name within a class; hidden files are left out."""

    def __init__(self, argument: str) -> None:
        path, options = split_argument(argument, ImageOptions)
        super().__init__(path)
        shape = parse_shape(options.shape)
        if len(shape) != 3 or shape[0] not in _MODES:
            raise DataError(f"An image cannot be '{options.shape}'; write 1xHxW for grey or 3xHxW for colour.")
        self._mode, self._size = _MODES[shape[0]], shape[1:]
        self._classes = read_class_names(Path(options.classes) if options.classes else None)

    def files(self) -> list[Path]:
        """All images, in order."""
        return [file for file, _ in self._labelled()]

    def read(self) -> Samples:
        """The images with their folders' classes."""
        labelled = self._labelled()
        x = np.stack([self._pixels(file) for file, _ in labelled])
        labels = np.array([label for _, label in labelled])
        return checked_samples(x, labels, f"'{self.path}'", class_names=self._classes)

    def _labelled(self) -> list[tuple[Path, int]]:
        folders = sorted((self._class(folder), folder) for folder in _entries(self.path) if folder.is_dir())
        found = [(file, label) for label, folder in folders for file in _entries(folder) if file.is_file()]
        if not found:
            raise DataError(f"'{self.path}' holds no images: it takes a subfolder a class, with images in it.")
        return found

    def _class(self, folder: Path) -> int:
        name = folder.name
        if self._classes:
            if name not in self._classes:
                raise DataError(f"The folder '{folder}' is none of the {len(self._classes)} class names.")
            return self._classes.index(name)
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise DataError(f"The folder '{folder}' is no class from 0; for names of classes give classes=FILE.")
        return int(name)

    def _pixels(self, file: Path) -> NDArray[np.uint8]:
        """``[C, H, W]``."""
        height, width = self._size
        try:
            from PIL import Image
        except ImportError as error:
            raise DataError(
                "Images need Pillow, which is not installed: pip install 'edge-fl[images]'."
            ) from error
        try:
            with Image.open(file) as image:
                if (pixels := image.width * image.height) > _MOST_PIXELS:
                    raise DataError(
                        f"'{file}' has {pixels:,} pixels, and {_MOST_PIXELS:,} is the most: scale it down."
                    )
                return _planes(_eight_bits(image, file).convert(self._mode).resize((width, height)))
        except DataError:
            raise
        except Exception as error:  # Pillow's readers have no common base for what they raise on damaged files
            raise DataError(f"'{file}' cannot be read as an image: {said(error)}.") from error


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"The data folder '{folder}' cannot be read: {error.strerror}.") from error


def _eight_bits(image: "Image", file: Path) -> "Image":
    if image.mode.startswith(_DEEP):
        raise DataError(f"'{file}' has more than 8 bits a pixel; save it with 8.")
    return image


def _planes(image: "Image") -> NDArray[np.uint8]:
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)


SOURCE = ImageSource
