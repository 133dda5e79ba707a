"""Samples that are given as objects are held against the model as those of a spec are."""

from pathlib import Path

import numpy as np
import pytest

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import DataError
from edge_fl.data.given import samples_of
from edge_fl.data.registry import Samples, load_dataset
from edge_fl.data.splits import test_samples as held_out
from edge_fl.data.splits import train_samples


def test_samples_that_fit_are_taken_as_they_are(digits_bundle: Bundle) -> None:
    samples = load_dataset("digits").test
    assert train_samples(samples, digits_bundle) is samples
    assert held_out(samples, digits_bundle) is samples


def test_samples_of_another_shape_or_class_are_refused(digits_bundle: Bundle) -> None:
    samples = load_dataset("digits").test
    flat = Samples(samples.x.reshape(len(samples.x), -1), samples.y)
    strange = Samples(samples.x, np.full_like(samples.y, 10))
    for wrong, sentence in ((flat, "samples of shape"), (strange, "labels 10 to 10")):
        for read in (train_samples, held_out):
            with pytest.raises(DataError, match=sentence):
                read(wrong, digits_bundle)


def test_only_a_file_that_is_mapped_to_be_read_is_not_copied(tmp_path: Path) -> None:
    x, y = np.ones((6, 2), np.float32), np.zeros(6, np.int64)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy"]
    found = samples_of((mapped[0][:4], mapped[1][:4]))
    assert np.shares_memory(found.x, mapped[0])
    assert np.shares_memory(found.y, mapped[1])
    view = x.view()
    view.flags.writeable = False  # as pandas gives what can still be written to
    for given in (
        x,
        view,
        np.load(tmp_path / "x.npy", mmap_mode="r+"),
        np.load(tmp_path / "x.npy", mmap_mode="c"),
    ):
        assert not np.shares_memory(samples_of((given, y)).x, given)
    x[:] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(DataError, match=r"not a finite number in sample 0 \(from 0\)"):
        samples_of((np.load(tmp_path / "x.npy", mmap_mode="r"), y))
