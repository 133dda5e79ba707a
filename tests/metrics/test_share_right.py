import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_fl.metrics.classification import share_right


@given(st.data())
def test_a_target_is_right_when_few_enough_outputs_come_before_it(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(3, 5), (2, 4, 5)]))
    top = data.draw(st.integers(1, 5))
    outputs = data.draw(hnp.arrays(np.float32, shape, elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0, np.inf])))
    y = data.draw(hnp.arrays(np.int64, shape[:-1], elements=st.integers(0, 4)))
    best = np.argsort(-outputs, axis=-1, kind="stable")[..., :top]
    right = (best == y[..., None]).any(axis=-1)
    expected = right if right.ndim == 1 else right.mean(axis=1)
    assert share_right(outputs, y, top).tolist() == expected.tolist()


def test_an_output_that_is_no_number_is_no_right_answer() -> None:
    outputs = np.array([[np.nan, 1.0, np.nan], [np.nan] * 3], dtype=np.float32)
    assert share_right(outputs, np.array([1, 2]), 1).tolist() == [0.0, 0.0]
