"""FEMNIST: handwritten digits and letters by their writers, a sample of LEAF's (Caldas et al., 2018; BSD 2-Clause).

105 writers with 14,708 training and 1,685 test images. The split is LEAF's own, within each writer.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import DataError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.data.files import RemoteFile, read_members
from edge_fl.data.registry import Dataset, DatasetInfo, Samples

__all__ = ["INFO", "Pages", "decode_leaf", "load"]

INFO = DatasetInfo("femnist", input_shape=(1, 28, 28), classes=62)

Pages = dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]
"""By writer: images ``[n, 784]`` and classes ``[n]`` (digits, capitals, small letters)."""

_URL = "https://raw.githubusercontent.com/slz-ai/leaf-torch/5a94e3b721bf5920a25d59d800481380602b7862/data/femnist/data"
_TRAIN = {
    0: "e52c8724a9a3ea3ff3fecc179b3f322efa25fe84a1d712a37ee94586f08123c6",
    1: "e7e9a1b23bc206e1feeb94d4f993d911ed950adc47e92ce52954597197b99c13",
    2: "a71f9d0d1ab95b98bb95f20cdcab02097125efab27d9ce341045cb07d565409d",
    3: "1623ade048b1c1991d3aa6d5a658dcb67e83fe1def41c2b2647f466f3f3c91db",
    4: "133facbc92bfaffe3b315a147cd458ca20e3283d3f48882ad72e953c4906e435",
    5: "2a2b8dccb528033995b0d29ddd953edf002242ed4869c99b23983570b37348de",
    6: "be03dc6a7fef7197501f75cb25285f03b9dbf6ae0e1367e48d82096da41cb32c",
    7: "2e1008e286bdb71110e47ab0010edde2d5bcabfb96ba988926481aa401e85532",
    8: "b72ad0551d01fa0b031f2580aac5bc415f4ffb8613a8cf62048389923d44be90",
    9: "4c8ed42c941fa95250f21125cf35141b57147cce5063e6acb1bf1d02c7684b8d",
    10: "dc687d0b52afc4cb038ba59504f5962217947b58be77708502f27aace6481f9d",
    16: "927bb8cc27658e539c0781ac39918397b3ad712f42fff8ac687778dfabab2451",
    17: "9fe910f90e73eb87989f8dbcbab94bd713b1ada05dad8c438f19d0febe4ea5d6",
    18: "b0acfd82f3e3854d6a105928c46f66c25868b3ae1305488a9e91572dce0396b0",
    19: "6e3184a7b11c700f89af4a779dcca275796768c48fa84e4e150af7d4bf4db513",
    20: "46a4e20479468057c9b9462cc60ad2ad48c2b0c000e740d94d4a8310b23715bf",
    31: "a2438bbf6e17a45d05ea9e28b9c7085dde298e1ed02e00372eee6da8161d6701",
    32: "8c82d19646fbc0a96483d886c36a3502bdfc657e758c40cae12ee9eef83e3daf",
    33: "b6f89d29618747d8431396bd2a9d2e54fd2286d1d8939a9b32c72f569d6ffd05",
    34: "655a68578d2edd76a02f6ee8141e32c5aad079f48d4edeece711b0e04c84c1fc",
}
_TEST = {
    0: "979c4ab82ccbc6de67656cfdfc7412900910099014a7c134d64a36347ca6be41",
    1: "e7dabc622469a0941c32ba03c14ba8c1f2f2c24e03378926f2b4d60a10f5a537",
    2: "86f292986d0843c50f08d069125f73fddd4fff59a990e6a4c7cc7fff472696b1",
    3: "99f701d9394a8516a4cb86eb96e3565bf8a405e490ae00487f882419ca86d6fc",
    4: "2a4c61b74d2efd1dcd6b7eaa6a970ca10da82f6b1f3b419839c6ae314e85b14b",
    5: "63b48265b8ccae669c770ce7846976dbd62e7b848e9c36563d93a364f0109607",
    6: "a7ece8a2f53b40671c5a58150d6b7f846bb44003a9b4b8c4628a1973387607ca",
    7: "a2094cd1048f01072f4a9b8cbff2bd1f69c4e24c03f871e0b23796c19f2f8c97",
    8: "3939db329891ce9a9b1def83e55af6193eabaa11672344d8129d4a9ab6300e86",
    9: "09707e362bd5cf273c1948170eb0e3aed4264659b9b7efbb4d7bd0fd38be4b12",
    10: "9ed09f6d45455c66d8d442a8451d96d7f53b64e159149a2ccc0931651ae52851",
    16: "b326cd7652b00073ae157e517b6d90e5bd45257bcdf8b6d6781f5e9beafdf628",
    17: "40b93f70a73598b133443a7c5e332e706d82c2611de7d5cfd6066d2a2a3c9052",
    18: "fefe2cf9c2f14fdb6cb757774ff841519fed1adf214c786c680492a94d6b63fc",
    19: "c3f5506ff72efbce185955fb4778d7887389a31c0bb4d9090a08dbcb90101e82",
    20: "34a4aedc5b4e7a7c88c3ddb2f8f5beff944a5f3619e98a634879de9e509588f6",
    31: "7534a28d664082283e1fd678ced09faf2883b344cc87f12acdc8490c60562ece",
    32: "83e62e7c499bf1211424b0a38082df3efd80de66f9f2a16a094d8f971f8f6f03",
    33: "b5eec2f3d839cf2934a9581aaaee94b40bf368fcdf1c918b9107fd67f1fde519",
    34: "1ccf595d2c2442141ba555cba762d4c72d76d8e7341314e45e7830d196013fe0",
}
_REPACKED = RemoteFile(
    "femnist/leaf_femnist_niid05.tar.xz",
    _URL,
    "6e76a9816ab3495d1715b04b4c00ebc7bc937baa3adde1f2b28f22ae3e2a82a0",
)


def load(folder: Path | None) -> Dataset:
    """Load the data set from ``folder``, else by download; raises DataError when it cannot be had."""
    published = {"train": _files("train", _TRAIN), "test": _files("test", _TEST)}
    split_of = {Path(file.name).name: split for split, files in published.items() for file in files}
    held: dict[str, Pages] = {"train": {}, "test": {}}
    for name, content in read_members([*published["train"], *published["test"]], [_REPACKED], folder):
        if name in split_of:  # the archive also holds test files of writers that have no others
            held[split_of[name]] |= decode_leaf(content, f"femnist/{name}")
    writers = sorted(held["train"])
    return Dataset(INFO, _samples(held["train"], writers), _samples(held["test"], writers))


def _files(split: str, sha256: Mapping[int, str]) -> list[RemoteFile]:
    names = {number: f"all_data_{number}_niid_05_keep_0_{split}_9.json" for number in sha256}
    return [RemoteFile(f"femnist/{names[n]}", f"{_URL}/{split}/{names[n]}", sha256[n]) for n in sha256]


class _Writer(msgspec.Struct):
    x: list[list[float]]
    y: list[int]


class _File(msgspec.Struct):
    user_data: dict[str, _Writer]


def decode_leaf(content: bytes, where: str) -> Pages:
    """Decode one of LEAF's JSON files of FEMNIST.

    Raises
    ------
    DataError
        When it is none: no such JSON, an image that has not 784 pixels in [0, 1], a class that there is not;
        ``where`` names it.
    """
    try:
        writers = msgspec.json.decode(content, type=_File).user_data
    except UNREADABLE as error:
        raise DataError(f"'{where}' is no LEAF file: {error}.") from error
    return {name: _decoded(writer, name, where) for name, writer in writers.items()}


def _decoded(writer: _Writer, name: str, where: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    size = int(np.prod(INFO.input_shape))
    if len(writer.x) != len(writer.y) or any(len(image) != size for image in writer.x):
        raise DataError(f"'{where}' holds images of writer '{name}' that are not {size} pixels and a class each.")
    if not all(0 <= label < INFO.classes for label in writer.y):
        raise DataError(f"'{where}' holds a class of writer '{name}' that is not in 0 to {INFO.classes - 1}.")
    x = np.array(writer.x, dtype=np.float32).reshape(-1, size)
    if not ((x >= 0) & (x <= 1)).all():
        raise DataError(f"'{where}' holds an image of writer '{name}' with a pixel outside 0 to 1.")
    return x, np.array(writer.y, dtype=np.int64)


def _samples(pages: Pages, writers: list[str]) -> Samples:
    images, labels = zip(*(pages[writer] for writer in writers), strict=True)
    owner = np.repeat(np.arange(len(writers)), [len(y) for y in labels])
    return Samples(np.concatenate(images).reshape(-1, *INFO.input_shape), np.concatenate(labels), owner)
