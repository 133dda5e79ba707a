"""Refusals get from one process to another."""

import pickle

import pytest

from edge_fl.core import errors
from edge_fl.core.errors import EdgeFLError, FrameError

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EdgeFLError)]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_process(kind: type[EdgeFLError]) -> None:
    error = kind("stale", "It is old.") if kind is FrameError else kind("It is old.")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (kind, "It is old.", vars(error))
