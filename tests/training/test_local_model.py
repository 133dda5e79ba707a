import numpy as np

from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.training.local_model import LocalModel

AXES = ((Segment("a"),), (Segment(None, inner=2),))
LAYOUT = Layout((Block("a", 3),), (Tensor("a.weight", (3, 2), AXES, AXES),))


def test_state_that_starts_otherwise_than_fresh_follows_the_rows_that_are_kept() -> None:
    rates = np.arange(6, dtype=np.float32).reshape(3, 2)
    model = LocalModel({"a.weight": np.zeros((3, 2), np.float32)}, {"log_alpha.a.weight": rates})
    selection = Selection.of(Pattern(LAYOUT, np.array([True, False, True])), "units")
    fresh = {name: np.zeros((2, 2), np.float32) for name in ("log_alpha.a.weight", "momentum_log_alpha.a.weight")}

    kept = model.gather_slots(selection, fresh)
    trained = {name: array + 10 for name, array in kept.items()}
    model.put_back(selection, selection.gather(model.weights), trained)

    assert kept["log_alpha.a.weight"].tolist() == [[0, 1], [4, 5]]
    assert not kept["momentum_log_alpha.a.weight"].any()
    assert model.slots["log_alpha.a.weight"].tolist() == [[10, 11], [2, 3], [14, 15]]
    assert model.slots["momentum_log_alpha.a.weight"].tolist() == [[10, 10], [0, 0], [10, 10]]
    assert rates.tolist() == [[0, 1], [2, 3], [4, 5]]
