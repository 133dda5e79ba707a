import numpy as np
import pytest

from edge_fl.core.errors import DataError
from edge_fl.core.randomness import Stream
from edge_fl.data.partition import DataSpec, Kind, client_samples, partition
from edge_fl.data.registry import Samples, load_dataset


def test_specs_are_read() -> None:
    assert DataSpec.parse("digits") == DataSpec("digits", 0, 1)
    assert DataSpec.parse("fashion-mnist:3/10") == DataSpec("fashion-mnist", 3, 10)
    assert DataSpec.parse("digits:3/10:iid") == DataSpec("digits", 3, 10)
    assert DataSpec.parse("femnist:3/105:owners") == DataSpec("femnist", 3, 105, Kind("owners"))
    assert DataSpec.parse("digits:3/10:dirichlet=0.5") == DataSpec("digits", 3, 10, Kind("dirichlet", 0.5))
    assert DataSpec.parse("digits:3/10:labels=5") == DataSpec("digits", 3, 10, Kind("labels", 5))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "digits:",
        "digits:1",
        "digits:/3",
        "digits:1/",
        "digits:-1/3",
        "digits:0/0",
        "digits:3/3",
        "digits:4/3",
        "digits:0/3/4",
        "digits:0/3:0/3",
        "digits: 0/3",
        "digits:²/3",
        "digits:0/3\n",
        "nothing:0/3",
        "digits:labels=5",
        "digits:0/3:labels",
        "digits:0/3:labels=0",
        "digits:0/3:iid=1",
        "digits:0/3:dirichlet",
        "digits:0/3:dirichlet=0",
        "digits:0/3:dirichlet=0.0",
        "digits:0/3:dirichlet=.5",
        "digits:0/3:labels=2.5",
        "digits:0/3:owners=3",
        "nothing",
        "digits:0/" + "9" * 5000,
    ],
)
def test_a_bad_spec_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        DataSpec.parse(text)


def test_a_bare_name_is_the_whole_train_split() -> None:
    train, samples = load_dataset("digits").train, client_samples(DataSpec.parse("digits"))
    assert np.array_equal(samples.x, train.x)
    assert np.array_equal(samples.y, train.y)


@pytest.mark.parametrize("clients", [2, 10, 300])
def test_shares_are_disjoint_even_and_complete(clients: int) -> None:
    train = load_dataset("digits").train
    shares = [client_samples(DataSpec("digits", c, clients)) for c in range(clients)]
    sizes = [len(share.y) for share in shares]
    assert sum(sizes) == len(train.y)
    assert max(sizes) - min(sizes) <= 1
    rows = np.concatenate([np.column_stack([s.x.reshape(len(s.y), -1), s.y]) for s in shares])
    whole = np.column_stack([train.x.reshape(len(train.y), -1), train.y])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, whole))


def test_a_share_is_a_stretch_of_the_documented_permutation() -> None:
    train = load_dataset("digits").train
    order = Stream.of(seed=0, purpose="partition").permutation(1437)
    assert client_samples(DataSpec("digits", 1, 10)).y.tolist() == train.y[np.sort(order[144:288])].tolist()
    assert client_samples(DataSpec("digits", 9, 10)).y.tolist() == train.y[np.sort(order[1437 - 143 :])].tolist()


def test_shares_look_alike() -> None:
    """IID: every client of five holds every class, within 5 standard deviations of its share."""
    for client in range(5):
        counts = np.bincount(client_samples(DataSpec("digits", client, 5)).y, minlength=10)
        assert abs(counts - 28.7).max() < 5 * np.sqrt(28.7)


@pytest.mark.parametrize("spec", [DataSpec("digits", 1437, 1438), DataSpec("digits", 10**9 - 2, 10**9 - 1)])
def test_a_client_without_data_is_refused(spec: DataSpec) -> None:
    with pytest.raises(DataError, match=f"Client {spec.client} of {spec.clients} has no data"):
        client_samples(spec)


@pytest.mark.parametrize("kind", [Kind("labels", 3), Kind("shards", 2), Kind("dirichlet", 1), Kind("sizes", 0.5)])
def test_parts_share_no_sample(kind: Kind) -> None:
    parts = partition(load_dataset("digits").train, 20, kind)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert all(len(part) for part in parts)


def test_a_client_holds_the_labels_it_drew_in_equal_parts() -> None:
    train = load_dataset("digits").train
    labels, parts = train.y, partition(train, 20, Kind("labels", 3))
    assert all(len(np.unique(labels[part])) == 3 for part in parts)
    for label in range(10):
        held = [int((labels[part] == label).sum()) for part in parts if label in labels[part]]
        assert max(held) - min(held) <= 1
        assert sum(held) == (labels == label).sum()


def test_shards_are_stretches_of_the_sorted_labels() -> None:
    train = load_dataset("digits").train
    labels, parts = train.y, partition(train, 20, Kind("shards", 2))
    assert sum(map(len, parts)) == len(labels)
    assert all(len(np.unique(labels[part])) <= 4 for part in parts)


def test_more_labels_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(DataError, match="11 labels of 10"):
        partition(load_dataset("digits").train, 5, Kind("labels", 11))


def written(owners: list[int]) -> Samples:
    """Samples of one pixel by these owners."""
    n = len(owners)
    return Samples(np.zeros((n, 1), np.float32), np.zeros(n, np.int64), np.array(owners))


def test_a_client_is_an_owner_where_there_are_as_many() -> None:
    samples = written([7, 2, 2, 5, 7, 7])
    parts = partition(samples, 3, Kind("owners"))
    assert sorted(part.tolist() for part in parts) == [[0, 4, 5], [1, 2], [3]]


def test_owners_are_grouped_whole_where_there_are_more_of_them() -> None:
    owners = [i % 10 for i in range(60)]
    parts = partition(written(owners), 4, Kind("owners"))
    held = [sorted({owners[i] for i in part}) for part in parts]
    assert sorted(map(len, held)) == [2, 2, 3, 3]
    assert sorted(owner for group in held for owner in group) == list(range(10))
    assert all(len(part) == 6 * len(group) for part, group in zip(parts, held, strict=True))
    assert held != sorted(held)  # drawn, not dealt in order


def test_an_owner_is_not_divided() -> None:
    with pytest.raises(DataError, match="3 owners cannot be 4 clients"):
        partition(written([1, 2, 3, 3, 3]), 4, Kind("owners"))


def test_without_owners_there_is_no_partition_by_them() -> None:
    with pytest.raises(DataError, match="does not say whose"):
        partition(load_dataset("digits").train, 4, Kind("owners"))


def test_a_small_dirichlet_parameter_parts_the_labels_and_a_large_one_does_not() -> None:
    train = load_dataset("digits").train

    def largest_share(alpha: float) -> float:
        parts = partition(train, 10, Kind("dirichlet", alpha))
        assert sum(map(len, parts)) == len(train.y)
        return float(np.mean([np.bincount(train.y[part]).max() / len(part) for part in parts]))

    assert largest_share(0.2) > 0.3
    assert largest_share(1000) < 0.2


def test_sizes_differ_and_labels_do_not() -> None:
    train = load_dataset("digits").train
    parts = partition(train, 100, Kind("sizes", 0.3))
    sizes = sorted(map(len, parts))
    assert sizes[0] >= 1
    assert sum(sizes) == len(train.y)
    assert sizes[-1] > 5 * sizes[50]
    assert len(np.unique(train.y[max(parts, key=len)])) == 10


@pytest.mark.parametrize("kind", [Kind("labels", 1), Kind("shards", 2), Kind("dirichlet", 0.5)])
def test_sequences_have_no_label_to_be_cut_by(kind: Kind) -> None:
    sequences = Samples(np.zeros((9, 4), np.int64), np.zeros((9, 4), np.int64), np.arange(9))
    with pytest.raises(DataError, match="has 4 targets and no label of its own"):
        partition(sequences, 3, kind)
    assert len(partition(sequences, 9, Kind("owners"))) == len(partition(sequences, 9, Kind("sizes", 1))) == 9
