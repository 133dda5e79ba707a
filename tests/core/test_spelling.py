from edge_fl.core.spelling import meant


def test_the_nearest_name_is_asked_after() -> None:
    assert meant("droput", ("scale", "dropout", "dropped")) == " Did you mean 'dropout'?"


def test_nothing_is_asked_where_no_name_is_near() -> None:
    assert meant("colour", ("scale", "dropout")) == meant("colour", ()) == ""
