"""What a client trains of its model, and by how much that changed it."""

import numpy as np
import pytest

from edge_fl.core.layout import Block, Layout, Mode, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.training.local_model import LocalModel

AXES = ((Segment("a"),), (Segment(None, inner=2),))
SMALL = Layout((Block("a", 3),), (Tensor("a.weight", (3, 2), AXES, AXES),))
LAYOUT = mlp_layout(7, 8, 6, 3)
FIRST, SECOND = (Pattern.seeded(LAYOUT, 500, key=key) for key in (1, 2))


def trained(model: LocalModel, pattern: Pattern, full: dict[str, np.ndarray]) -> Weights:
    """Train what a pattern keeps, of ``model`` and of its tensors ``full``; what was put back."""
    selection = Selection.of_trained(pattern)
    kept = {name: array * 3 + 1 for name, array in selection.gather(model.current).items()}
    assert all(np.array_equal(kept[name], 3 * old + 1) for name, old in selection.gather(full).items())
    model.put_back(selection, kept, {})
    selection.scatter(kept, full)
    return kept


def started() -> tuple[LocalModel, dict[str, np.ndarray], Weights]:
    """A model, its tensors as an array each, and what they were."""
    start = random_weights(LAYOUT, 0)
    for array in start.values():
        array.flags.writeable = False
    return LocalModel(start), {name: np.array(array) for name, array in start.items()}, start


@pytest.mark.parametrize("mode", ["rows", "units"])
@pytest.mark.parametrize("patterns", [(FIRST,), (FIRST, SECOND), (FIRST, FIRST), (FIRST, SECOND, FIRST)])
def test_the_change_is_that_of_the_full_tensors_and_zero_where_nothing_was_trained(
    patterns: tuple[Pattern, ...], mode: Mode
) -> None:
    model, full, start = started()
    for pattern in patterns:
        trained(model, pattern, full)
    uploaded = Selection.of(patterns[-1], mode)
    change = model.take_change(uploaded)
    expected = {name: full[name] - start[name] for name in full}
    for name, kept in uploaded.gather(expected).items():
        assert np.array_equal(change.uploaded[name], kept)
        assert np.abs(change.trained[name]).max() == np.abs(expected[name]).max()


@pytest.mark.parametrize("patterns", [(FIRST,), (FIRST, SECOND)])
def test_the_change_is_taken_once(patterns: tuple[Pattern, ...]) -> None:
    model, full, _ = started()
    for pattern in patterns:
        trained(model, pattern, full)
    model.take_change(Selection.of(FIRST, "units"))
    with pytest.raises(KeyError):
        model.take_change(Selection.of(FIRST, "units"))


def test_an_upload_of_other_rows_than_were_trained_has_what_these_were() -> None:
    model, full, start = started()
    trained(model, FIRST, full)
    change = model.take_change(Selection.of(SECOND, "units"))
    expected = Selection.of(SECOND, "units").gather({name: full[name] - start[name] for name in full})
    assert all(np.array_equal(change.uploaded[name], kept) for name, kept in expected.items())


def test_the_weights_may_be_looked_at_and_written_to_at_any_time() -> None:
    model, full, start = started()
    kept = trained(model, FIRST, full)
    assert all(np.array_equal(model.weights[name], full[name]) for name in full)
    for array in kept.values():
        array[...] = np.nan  # it was read when the weights were
    model.weights["layer0.weight"][0, 0] = full["layer0.weight"][0, 0] = 77
    change = model.take_change(Selection.of(FIRST, "units"))
    assert all(np.array_equal(change.trained[name], full[name] - start[name]) for name in full)


def test_state_that_starts_otherwise_than_fresh_follows_the_rows_that_are_kept() -> None:
    rates = np.arange(6, dtype=np.float32).reshape(3, 2)
    model = LocalModel({"a.weight": np.zeros((3, 2), np.float32)}, {"log_alpha.a.weight": rates})
    selection = Selection.of(Pattern(SMALL, np.array([True, False, True])), "units")
    fresh = {name: np.zeros((2, 2), np.float32) for name in ("log_alpha.a.weight", "momentum_log_alpha.a.weight")}

    kept = model.gather_slots(selection, fresh)
    trained = {name: array + 10 for name, array in kept.items()}
    model.put_back(selection, selection.gather(model.weights), trained)

    assert kept["log_alpha.a.weight"].tolist() == [[0, 1], [4, 5]]
    assert not kept["momentum_log_alpha.a.weight"].any()
    assert model.slots["log_alpha.a.weight"].tolist() == [[10, 11], [2, 3], [14, 15]]
    assert model.slots["momentum_log_alpha.a.weight"].tolist() == [[10, 10], [0, 0], [10, 10]]
    assert rates.tolist() == [[0, 1], [2, 3], [4, 5]]
