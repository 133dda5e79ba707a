import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_fl.core.errors import DataError
from edge_fl.core.randomness import Stream
from edge_fl.data.registry import Dataset, DatasetInfo, dataset_info, dataset_names, load_dataset

needs_files = pytest.mark.skipif(
    not os.environ.get("EDGE_FL_DATA"), reason="EDGE_FL_DATA names no folder with the real data sets"
)


def test_data_sets_are_known_by_name() -> None:
    assert dataset_names() == [
        "cifar-10",
        "digits",
        "fashion-mnist",
        "femnist",
        "mnist",
        "shakespeare",
        "wikitext-2",
    ]
    assert dataset_info("digits") == DatasetInfo("digits", (1, 8, 8), 10)
    assert dataset_info("wikitext-2").top == 3
    assert dataset_info("fashion-mnist") == DatasetInfo("fashion-mnist", (1, 28, 28), 10)


@pytest.mark.parametrize("name", ["cifar", "registry", "fashion_mnist", ""])
def test_an_unknown_data_set_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"no data set '{name}'; there are cifar-10, digits, fashion-mnist"):
        load_dataset(name)


def check_form(dataset: Dataset, train: int, test: int) -> None:
    for samples, n in ((dataset.train, train), (dataset.test, test)):
        assert samples.x.shape == (n, *dataset.info.input_shape)
        assert samples.x.dtype == np.float32
        assert (samples.x.min(), samples.x.max()) == (0.0, 1.0)
        assert samples.y.shape == (n,)
        assert samples.y.dtype == np.int64
        assert np.unique(samples.y).tolist() == list(range(dataset.info.classes))


def test_digits_are_embedded_and_split_as_documented() -> None:
    dataset = load_dataset("digits")
    check_form(dataset, 1437, 360)
    with np.load(Path(sys.modules[load_dataset.__module__].__file__ or "").with_name("digits.npz")) as source:
        pixels, labels = source["pixels"], source["labels"]
    order = Stream.of(seed=0, purpose="digits-split").permutation(1797)
    y = np.concatenate([dataset.train.y, dataset.test.y])
    x = np.concatenate([dataset.train.x, dataset.test.x])
    assert y.tolist() == labels[order].tolist()
    assert (x * 16).reshape(-1, 8, 8).tolist() == pixels[order].tolist()


def test_embedded_digits_are_those_of_uci() -> None:
    """The counts of each class that the UCI repository states for the test set, and its first instance."""
    with np.load(Path(sys.modules[load_dataset.__module__].__file__ or "").with_name("digits.npz")) as source:
        pixels, labels = source["pixels"], source["labels"]
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert pixels[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert pixels.max() == 16


@needs_files
@pytest.mark.parametrize(
    ("name", "first_labels"), [("mnist", [5, 0, 4, 1, 9]), ("fashion-mnist", [9, 0, 0, 3, 0])]
)
def test_the_real_files_are_read(name: str, first_labels: list[int]) -> None:
    dataset = load_dataset(name)
    check_form(dataset, 60_000, 10_000)
    assert dataset.train.y[:5].tolist() == first_labels


@needs_files
def test_real_femnist_is_split_within_each_writer() -> None:
    dataset = load_dataset("femnist")
    check_form(dataset, 14_708, 1_685)
    train, test = dataset.train.owner, dataset.test.owner
    assert train is not None
    assert test is not None
    assert np.unique(train).tolist() == np.unique(test).tolist() == list(range(105))
    share = np.bincount(test) / (np.bincount(train) + np.bincount(test))
    assert np.median(share) == pytest.approx(0.1, abs=0.01)


@needs_files
def test_the_real_cifar_10_is_read() -> None:
    dataset = load_dataset("cifar-10")
    assert len(dataset.train.y) in (10_000, 50_000)  # the folder may hold the first batch only
    check_form(dataset, len(dataset.train.y), 10_000)
    assert dataset.train.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert (255 * dataset.train.x[0, :, 0, 0]).round().tolist() == [59, 62, 63]


def check_sequences(dataset: Dataset, train: int, test: int) -> None:
    for samples, n in ((dataset.train, train), (dataset.test, test)):
        assert samples.x.shape == (n, *dataset.info.input_shape)
        assert samples.y.shape == (n, *dataset.info.target_shape)
        assert (samples.x.dtype, samples.y.dtype) == (np.int64, np.int64)
        assert samples.y[:, :-1].tolist() == samples.x[:, 1:].tolist()
        assert samples.x.min() >= 0
        assert max(samples.x.max(), samples.y.max()) < dataset.info.classes


@needs_files
def test_real_shakespeare_is_cut_by_role() -> None:
    dataset = load_dataset("shakespeare")
    check_sequences(dataset, 48_655, 4_877)
    train, test = dataset.train.owner, dataset.test.owner
    assert train is not None
    assert test is not None
    sizes, held_out = np.bincount(train), np.bincount(test, minlength=train.max() + 1)
    assert len(sizes) == 1171
    assert held_out.tolist() == ((sizes + held_out) // 10).tolist()


@needs_files
def test_the_real_wikitext_2_has_the_published_counts() -> None:
    """2,088,628 training words and 245,569 test words, ends of lines among them."""
    dataset = load_dataset("wikitext-2")
    check_sequences(dataset, 2_088_627 // 35, 245_568 // 35)
    assert max(dataset.train.x.max(), dataset.test.x.max()) == 33_277


def test_a_damaged_file_in_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b")
    monkeypatch.setenv("EDGE_FL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz' is damaged"):
        load_dataset("mnist")


def test_embedded_data_needs_neither_pooch_nor_torch() -> None:
    """A device has numpy and msgspec; only a download may ask for more."""
    code = (
        "import sys; from edge_fl.data.registry import load_dataset; load_dataset('digits');"
        "print([m for m in ('torch', 'pooch', 'requests', 'tqdm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_pooch_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    """A Python without site-packages but for numpy and msgspec stands for a bare device."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("numpy", "numpy.libs", "msgspec"):
        source = Path(np.__file__).parents[1] / name
        if source.exists():
            (bare / name).symlink_to(source)
    root = Path(sys.modules["edge_fl"].__file__ or "").parents[1]
    code = (
        "from edge_fl.data.registry import load_dataset\n"
        "from edge_fl.core.errors import DataError\n"
        "try: load_dataset('mnist')\n"
        "except DataError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": f"{root}:{bare}", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "'mnist/train-images-idx3-ubyte.gz' must be downloaded and pooch is not installed:"
        " install it, or set EDGE_FL_DATA to a folder that holds the file.\n"
    )
