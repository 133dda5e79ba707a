"""Several inputs by name: packed, put in the model's order, and refused where a value would change."""

from pathlib import Path

import numpy as np
import pytest

from edge_fl.core.errors import DataError
from edge_fl.core.inputs import NamedInput
from edge_fl.data.given import samples_of
from edge_fl.data.inputs_by_name import inputs_of, with_inputs, without_name
from edge_fl.data.sources.base import open_source

USER, SCORES, KEEP = (
    NamedInput("user", (), "int64", 30),
    NamedInput("scores", (2,)),
    NamedInput("keep", (), "bool"),
)
ARRAYS = {
    "keep": np.array([True, False, True]),
    "scores": np.array([[0.5, 1], [2, 3], [4, 5]], np.float32),
    "other": np.arange(3),
    "user": np.array([7, 29, 0]),
}
Y = np.array([0, 1, 0])


def test_inputs_come_in_the_models_order_and_others_are_left_out() -> None:
    samples = with_inputs(samples_of((ARRAYS, Y)), [USER, SCORES, KEEP])
    np.testing.assert_array_equal(samples.x, [[7, 0.5, 1, 1], [29, 2, 3, 0], [0, 4, 5, 1]])
    assert samples.x.dtype == np.float32
    assert with_inputs(samples, [USER, SCORES, KEEP]) is samples
    whole = with_inputs(samples_of((ARRAYS, Y)), [KEEP, USER])
    assert whole.x.dtype == np.int64
    assert {name: array.tolist() for name, array in inputs_of(whole).items()} == {
        "keep": [1, 0, 1],
        "user": [7, 29, 0],
    }


def test_every_way_to_give_them_is_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **ARRAYS, y=Y)
    rows = [({name: array[i] for name, array in ARRAYS.items()}, int(Y[i])) for i in range(3)]
    given = [
        samples_of((ARRAYS, Y)),
        samples_of({**ARRAYS, "labels": Y}),
        samples_of({"x": ARRAYS, "y": Y}),
        samples_of(rows),
        open_source(f"npz:{tmp_path / 'data.npz'}").samples(),
    ]
    taken = [with_inputs(samples, [USER, SCORES, KEEP]).x for samples in given]
    assert all(np.array_equal(x, taken[0]) for x in taken)


def test_columns_of_a_table_are_inputs_of_one_number(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text("user,score,label\n7,0.5,0\n29,2,1\n")
    samples = open_source(f"csv:{tmp_path / 'visits.csv'}").samples()
    taken = with_inputs(samples, [NamedInput("score", ()), USER])
    np.testing.assert_array_equal(taken.x, np.array([[0.5, 7], [2, 29]], np.float32))
    assert taken.columns == ()


@pytest.mark.parametrize(
    ("changed", "taken", "says"),
    [
        ({}, NamedInput("item", (), "int64"), "and the model takes the inputs 'item': give arrays of these names"),
        ({"user": np.zeros((3, 2))}, USER, r"'user' has the shape \(2,\) a sample, and the model takes \(\)"),
        (
            {"user": np.array([0.5, 1, 2])},
            USER,
            r"'user' is 0\.5 in sample 0 \(from 0\), and the model takes int64",
        ),
        (
            {"user": np.array([0, 30, 1])},
            USER,
            r"'user' is 30 in sample 1 \(from 0\), and the model knows 0 to 29",
        ),
        ({"keep": np.array([0, 2, 1])}, KEEP, r"'keep' is 2 in sample 1 \(from 0\), and the model knows 0 to 1"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changed: dict[str, np.ndarray], taken: NamedInput, says: str) -> None:
    with pytest.raises(DataError, match=says):
        with_inputs(samples_of(({**ARRAYS, **changed}, Y)), [taken])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (({}, Y), "gives no input"),
        (({"a b": Y}, Y), "an input has a name of letters"),
        (({"text": ["a", "b", "c"], "n": Y}, Y), "has texts as 'text' beside other inputs"),
        (({"a": np.full(3, 2**25), "b": np.ones(3, np.float32)}, Y), "'a' has whole numbers above 16,777,216"),
        (({"a": np.zeros(2), "b": np.zeros(3)}, Y), r"input 'a', gives x of shape \(2,\)"),
        ({"a": Y}, "it needs x and y, or inputs by name and one array called label"),
        ([({"a": 1}, 0), ({"b": 1}, 0)], "items that are not alike|gives x in object"),
    ],
)
def test_inputs_that_no_model_takes_are_refused(given: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        samples_of(given)


def test_one_input_needs_no_name() -> None:
    named = samples_of(({"pixels": ARRAYS["scores"]}, Y))
    np.testing.assert_array_equal(without_name(named).x, ARRAYS["scores"])
    unnamed = samples_of((ARRAYS["scores"], Y))
    np.testing.assert_array_equal(with_inputs(unnamed, [SCORES]).x, ARRAYS["scores"])
    with pytest.raises(DataError, match="and the model takes one input: give that one alone"):
        without_name(samples_of((ARRAYS, Y)))
    with pytest.raises(
        DataError, match="has one input without a name, and the model takes the inputs 'user', 'keep'"
    ):
        with_inputs(unnamed, [USER, KEEP])


def test_flags_and_lists_of_tables_are_inputs(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text("user,keep,label\n7,True,0\n29,false,1\n")
    samples = open_source(f"csv:{tmp_path / 'visits.csv'}").samples()
    np.testing.assert_array_equal(with_inputs(samples, [KEEP, USER]).x, [[1, 7], [0, 29]])

    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"user": [7, 29], "scores": [[0.5, 1.0], [2.0, 3.0]], "label": [0, 1]})
    parquet.write_table(table, tmp_path / "visits.parquet")
    lists = open_source(f"parquet:{tmp_path / 'visits.parquet'}").samples()
    np.testing.assert_array_equal(with_inputs(lists, [SCORES, USER]).x, [[0.5, 1, 7], [2, 3, 29]])
    np.testing.assert_array_equal(without_name(lists).x, [[7, 0.5, 1], [29, 2, 3]])  # as one vector


def test_a_wrong_target_is_no_inputs_fault() -> None:
    with pytest.raises(DataError, match=r"^the data holds a class below 0 in sample 1"):
        samples_of((ARRAYS, np.array([0, -50, 1])))


def test_an_input_may_be_called_x_and_others_may_stand_beside_it(tmp_path: Path) -> None:
    arrays = {"x": ARRAYS["scores"], "mask": np.array([[1, 0], [1, 1], [0, 1]], np.uint8)}
    np.savez(tmp_path / "d.npz", **arrays, y=Y)
    for samples in (samples_of({**arrays, "y": Y}), open_source(f"npz:{tmp_path / 'd.npz'}").samples()):
        np.testing.assert_array_equal(without_name(samples).x, ARRAYS["scores"])
        taken = with_inputs(samples, [NamedInput("mask", (2,), "int64"), NamedInput("x", (2,))])
        np.testing.assert_array_equal(taken.x[:, :2], arrays["mask"])


def test_whole_numbers_that_float32_does_not_hold_are_refused() -> None:
    with pytest.raises(DataError, match=r"'user' is 1\.67772e\+07 in sample 1 .*float32 does not hold such"):
        with_inputs(samples_of(({"user": np.array([0, 2**24 + 1, 1])}, Y)), [NamedInput("user", ())])


def test_columns_of_any_name_stay_one_vector(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"heart rate": [60.0, 70.0], "signal": [[0.5, 1.0], [2.0, 3.0]], "label": [0, 1]})
    parquet.write_table(table, tmp_path / "s.parquet")
    samples = open_source(f"parquet:{tmp_path / 's.parquet'}").samples()
    assert samples.inputs == ()
    np.testing.assert_array_equal(samples.x, [[60, 0.5, 1], [70, 2, 3]])
