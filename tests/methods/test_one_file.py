"""docs/extend.md claims that a new method is one new file, and the one printed there works."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_fl.measure.models import mlp_layout
from edge_fl.methods import base
from edge_fl.methods.base import Job, method_names, open_method

ROOT = Path(__file__).parents[2]


@pytest.fixture
def printed_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The method of docs/extend.md as a file beside the others."""
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)
    (tmp_path / "random_dropout.py").write_text(text)
    monkeypatch.setattr(base.methods, "__path__", [*base.methods.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield "random_dropout"
    sys.modules.pop("edge_fl.methods.random_dropout", None)


def test_a_method_is_one_file(printed_method: str) -> None:
    assert printed_method in method_names()
    method = open_method(printed_method, {"dropout": [500, 0]})
    layout = mlp_layout(4, 6, 3)
    for tier, (kept, scale) in enumerate([(3, 2.0), (6, 1.0), (6, 1.0)]):  # the last rate serves every tier beyond
        own = open_method(printed_method, method.for_tier(tier))
        local = own.local(Job(layout=layout, client="a", round=1, seed=0, weights={}, state={}))
        assert local.pattern.counts == method.counts(layout, tier) == {"layer0": kept}
        method.check(local.pattern, tier)
        local.after_step(0, 1.0)
        assert local.state() == {}
        assert np.isclose(local.scale, scale)
