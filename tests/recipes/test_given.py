"""Parameters of a record, as a person gives them."""

from pathlib import Path

import pytest

from edge_fl.methods.base import METHODS
from edge_fl.recipes.given import Given, as_given

OWN = '''
import msgspec
from edge_fl.methods.fedavg import FedAvg


class Mine(FedAvg):
    """Needs to be told one parameter."""

    name = "mine"

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        tau: int
        rates: list[float] = msgspec.field(default_factory=lambda: [0.5])
        weighting: str = "samples"
'''


def test_shares_are_numbers_and_defaults_are_told_from_others() -> None:
    found = as_given("fedbiad+tcs", {"dropout": [300, 600], "tau": 3, "tcs.bits": 5, "tcs.global_ratio": 0.01})
    assert found == {
        "dropout": Given((0.3, 0.6), is_default=False),
        "tau": Given(3, is_default=True),
        "tcs.bits": Given(5, is_default=False),
        "tcs.global_ratio": Given(0.01, is_default=True),
    }


def test_a_parameter_may_have_no_default_or_one_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS, "_used", {})
    file = tmp_path / "own.py"
    file.write_text(OWN)
    METHODS.use(f"{file}:Mine")
    found = as_given("mine", {"tau": 3, "rates": [0.5], "weighting": "clients"})
    assert found == {
        "tau": Given(3, is_default=False),
        "rates": Given([0.5], is_default=True),
        "weighting": Given("clients", is_default=False),
    }


@pytest.mark.parametrize("value", [500, "x", None, ["a"]])
def test_what_cannot_be_read_is_as_the_record_has_it(value: object) -> None:
    assert as_given("fedbiad", {"dropout": value}) == {"dropout": Given(value, is_default=False)}
    assert as_given("of_another", {"dropout": value}) == {"dropout": Given(value, is_default=False)}
    assert as_given("fedbiad", {"of_a_newer_version": value}) == {
        "of_a_newer_version": Given(value, is_default=False)
    }


def test_a_method_that_cannot_be_imported_is_as_the_record_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_fl.core.registry._entry_points", lambda _: {"theirs": ("no_such_module:Theirs",)})
    assert as_given("theirs", {"dropout": [500]}) == {"dropout": Given([500], is_default=False)}
