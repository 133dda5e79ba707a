from dataclasses import dataclass

import msgspec
import pytest

from edge_fl.core.errors import BundleError
from edge_fl.core.layout import Block, Layout, Segment, Tensor

FREE = Segment(None)


def free(n: int) -> tuple[Segment, ...]:
    return (Segment(None, inner=n),)


def unit(block: str, outer: int = 1, inner: int = 1) -> tuple[Segment, ...]:
    return (Segment(block, outer, inner),)


def lstm_and_head() -> Layout:
    gates = Tensor("lstm.weight", (12, 5), (unit("h", outer=4), free(5)), (unit("h", outer=4), free(5)))
    head = Tensor("head.weight", (2, 3), (free(2), free(3)), (free(2), unit("h")))
    return Layout((Block("h", 3),), (gates, head))


def test_a_layout_counts_its_units_and_numbers() -> None:
    layout = lstm_and_head()
    assert layout.sizes == {"h": 3}
    assert layout.units == 3
    assert layout.size == 12 * 5 + 2 * 3
    assert layout.tensors[1].axes("rows") == (free(2), free(3))
    assert layout.tensors[1].axes("units") == (free(2), unit("h"))


def test_a_layout_survives_its_json_and_keeps_its_digest() -> None:
    layout = lstm_and_head()
    again = msgspec.json.decode(msgspec.json.encode(layout), type=Layout)
    assert again == layout
    assert again.digest == layout.digest
    assert len(layout.digest) == 16


def test_the_digest_tells_layouts_apart() -> None:
    layout = lstm_and_head()
    gates, head = layout.tensors
    others = [
        Layout((Block("h", 3), Block("unused", 1)), layout.tensors),
        Layout(layout.blocks, (head, gates)),
        Layout(layout.blocks, (gates, msgspec.structs.replace(head, units=head.rows))),
        Layout(layout.blocks, (gates, msgspec.structs.replace(head, role="statistic"))),
    ]
    assert len({layout.digest, *(other.digest for other in others)}) == 5


@dataclass(frozen=True)
class Wrong:
    sentence: str
    blocks: tuple[Block, ...]
    tensors: tuple[Tensor, ...]


H = (Block("h", 3),)
WRONG = [
    Wrong("two blocks have one name", (Block("h", 3), Block("h", 4)), ()),
    Wrong("a block has no unit", (Block("h", 0),), ()),
    Wrong("two tensors have one name", H, (Tensor("t", (), (), ()), Tensor("t", (), (), ()))),
    Wrong("'t' has axes for another rank", H, (Tensor("t", (3,), (), (unit("h"),)),)),
    Wrong("'t' has axes for another rank", H, (Tensor("t", (3,), (unit("h"),), ()),)),
    Wrong("'t' names the unknown block", H, (Tensor("t", (3,), (unit("g"),), (unit("h"),)),)),
    Wrong("'t' has an empty segment", H, (Tensor("t", (0,), (unit("h", outer=0),), (free(0),)),)),
    Wrong("'t' has an axis of 4 described as 3", H, (Tensor("t", (4,), (unit("h"),), (unit("h"),)),)),
    Wrong("'t' has an axis of 2 described as 3", H, (Tensor("t", (2,), (unit("h"),), (unit("h"),)),)),
    Wrong("'t' has an axis of 6 described as 4", H, (Tensor("t", (6,), ((*unit("h"), FREE),), (free(6),)),)),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.sentence)
def test_a_layout_that_makes_no_sense_is_refused(wrong: Wrong) -> None:
    with pytest.raises(BundleError, match=wrong.sentence):
        Layout(wrong.blocks, wrong.tensors)
