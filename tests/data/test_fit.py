"""Data that does not fit the model is refused before it is trained on."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import DataError
from edge_fl.data.fit import check_fit
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.data.registry import Samples


def test_data_must_fit_the_model(digits_bundle: Bundle) -> None:
    manifest, digits = digits_bundle.manifest, client_samples(DataSpec.parse("digits"))
    check_fit(digits, manifest)
    with pytest.raises(DataError, match=r"shape \(1, 28, 28\) in float32, and 'digits-mlp' takes \(1, 8, 8\)"):
        check_fit(Samples(np.zeros((3, 1, 28, 28), np.float32), digits.y[:3]), manifest)
    with pytest.raises(DataError, match=r"in int64, and 'digits-mlp' takes \(1, 8, 8\) in float32"):
        check_fit(Samples(np.zeros((3, 1, 8, 8), np.int64), digits.y[:3]), manifest)
    with pytest.raises(DataError, match=r"targets of shape \(8,\) a sample, and 'digits-mlp' learns \(\)"):
        check_fit(Samples(digits.x[:3], np.zeros((3, 8), np.int64)), manifest)
    with pytest.raises(DataError, match="labels 0 to 9, and 'digits-mlp' knows 9 classes"):
        check_fit(digits, msgspec.structs.replace(manifest, classes=9))
    with pytest.raises(DataError, match="labels -1 to -1"):
        check_fit(Samples(digits.x[:1], np.array([-1])), manifest)


def test_class_names_of_data_and_model_stand_in_one_order(digits_bundle: Bundle) -> None:
    """Swapped names would train in silence, and learn the wrong classes."""
    digits, names = client_samples(DataSpec.parse("digits")), tuple("abcdefghij")
    manifest = msgspec.structs.replace(digits_bundle.manifest, class_names=names)
    check_fit(digits, manifest)
    check_fit(replace(digits, class_names=names), manifest)
    check_fit(replace(digits, class_names=names[::-1]), digits_bundle.manifest)
    with pytest.raises(DataError, match="class 1 is 'c', and 'digits-mlp' has 'b' there"):
        check_fit(replace(digits, class_names=(*"acb", *names[3:])), manifest)
    with pytest.raises(DataError, match="class 9 is none, and 'digits-mlp' has 'j' there"):
        check_fit(replace(digits, class_names=names[:9]), manifest)
