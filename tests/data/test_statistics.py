import numpy as np

from edge_fl.data.registry import Samples
from edge_fl.data.statistics import describe_parts


def test_a_part_is_described_by_what_it_holds() -> None:
    train = Samples(np.zeros((5, 1), np.float32), np.array([0, 1, 1, 3, 3]), np.array([4, 4, 6, 6, 6]))
    found = describe_parts(train, [np.array([0, 1, 2]), np.array([3, 4])], classes=4)
    assert found.samples.tolist() == [3, 2]
    assert found.labels.tolist() == [2, 1]
    assert found.owners is not None
    assert found.owners.tolist() == [2, 1]
    assert found.counts.tolist() == [[1, 2, 0, 0], [0, 0, 0, 2]]


def test_every_position_of_a_sequence_counts() -> None:
    y = np.array([[0, 1, 1], [2, 2, 2]])
    found = describe_parts(Samples(y, y), [np.array([0]), np.array([1])], classes=3)
    assert found.counts.tolist() == [[1, 2, 0], [0, 0, 3]]
    assert found.owners is None


def test_positions_without_a_target_are_no_class() -> None:
    samples = Samples(np.zeros((2, 3), np.int64), np.array([[0, 1, -100], [1, -100, -100]]))
    found = describe_parts(samples, [np.array([0]), np.array([1])], 2)
    assert found.counts.tolist() == [[1, 1], [0, 1]]
