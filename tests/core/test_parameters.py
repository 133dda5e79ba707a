"""Parameters given as text, as lists, or wrongly, of every method and compressor."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import pytest

from edge_fl.core.errors import ConfigError
from edge_fl.core.parameters import opened


class Parameters(msgspec.Struct, frozen=True):
    kind: Literal["a", "b"] = "a"
    count: int = 1
    share: float = 0.5
    limit: float | None = None
    on: bool = False
    widths: tuple[int, ...] = (1000,)
    few: Annotated[int, msgspec.Meta(le=3)] = 1
    named: Mapping[str, int] = {}

    def __post_init__(self) -> None:
        if self.share > 1:
            raise ValueError("a share is at most 1")


def test_text_becomes_what_the_field_is() -> None:
    given = {"kind": "b", "count": "3", "share": "0.25", "limit": "2", "on": "true", "widths": "500"}
    assert opened(Parameters, given, "method 'm'") == Parameters("b", 3, 0.25, 2.0, True, (500,))
    assert opened(Parameters, {"widths": ["1000", "500"]}, "method 'm'").widths == (1000, 500)
    assert opened(Parameters, {"widths": (1000, 500), "limit": None}, "method 'm'") == Parameters(
        widths=(1000, 500)
    )
    assert opened(Parameters, {}, "method 'm'") == Parameters()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "c"}, "'kind' of the method 'm' is a or b, not 'c'."),
        ({"count": "1.5"}, "'count' of the method 'm' is a whole number, not '1.5'."),
        ({"share": "half"}, "'share' of the method 'm' is a number, not 'half'."),
        ({"limit": "x"}, "'limit' of the method 'm' is a number, not 'x'."),
        ({"on": "maybe"}, "'on' of the method 'm' is true or false, not 'maybe'."),
        (
            {"widths": ["1", "x"]},
            "'widths' of the method 'm' is a whole number, or several with commas, not '1,x'.",
        ),
        ({"few": "4"}, "'few' of the method 'm' is a whole number, not '4'."),
        ({"named": "x"}, "'named' of the method 'm' is of another kind, not 'x'."),
        ({"share": 2}, "The method 'm' cannot be run with what it was given: a share is at most 1."),
        (
            {"width": 1},
            "The method 'm' takes kind, count, share, limit, on, widths, few, named, and no 'width'. "
            "Did you mean 'widths'?",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_what_does(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        opened(Parameters, given, "method 'm'")
    assert str(raised.value) == says
