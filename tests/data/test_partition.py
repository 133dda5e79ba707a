import numpy as np
import pytest

from edge_fl.data.partition import DataSpec, Kind, client_samples, partition
from edge_fl.data.registry import load_dataset
from edge_fl.errors import DataError
from edge_fl.randomness import Stream


def test_specs_are_read() -> None:
    assert DataSpec.parse("digits") == DataSpec("digits", 0, 1)
    assert DataSpec.parse("fashion-mnist:3/10") == DataSpec("fashion-mnist", 3, 10)
    assert DataSpec.parse("digits:3/10:iid") == DataSpec("digits", 3, 10)
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


@pytest.mark.parametrize("clients", [2, 10, 1000])
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


@pytest.mark.parametrize("kind", [Kind("labels", 3), Kind("shards", 2)])
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
