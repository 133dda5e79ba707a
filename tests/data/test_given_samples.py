"""Samples that are given as objects are held against the model as those of a spec are."""

import numpy as np
import pytest

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import DataError
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
