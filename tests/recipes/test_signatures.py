"""What help() and the documentation say of parameters is what methods and compressors take."""

import inspect
import pickle
import pkgutil
import re
from pathlib import Path

import pytest

import edge_fl
from edge_fl import compressors, methods
from edge_fl.compressors.base import COMPRESSORS, Compressor
from edge_fl.core.errors import ConfigError
from edge_fl.methods.base import METHODS, Method
from edge_fl.recipes.named import recipe_and_parameters
from edge_fl.recipes.recipe import open_recipe, shares_in_thousandths
from edge_fl.recipes.signatures import defaults, described

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
_SHARED = ("base", "capabilities")
OURS: list[tuple[str, type[Method] | type[Compressor]]] = [
    (name, registry.ours(name))
    for registry, package in ((METHODS, methods), (COMPRESSORS, compressors))
    for name in (module.name.replace("__", "+") for module in pkgutil.iter_modules(package.__path__))
    if name not in _SHARED and not name.startswith(("_", "+"))
]


@pytest.mark.parametrize(("name", "kind"), OURS)
def test_each_parameter_is_described(name: str, kind: type[Method] | type[Compressor]) -> None:
    summary, _, *entries = described(kind).split("\n")
    assert summary.endswith((".", ":"))
    assert [line for line in entries[2:] if not line.startswith(" ")] == list(defaults(kind))
    for key in defaults(kind):
        assert re.search(rf"^{key}\n    \S", "\n".join(entries), re.MULTILINE), key


@pytest.mark.parametrize(("name", "kind"), OURS)
def test_the_page_lists_each_parameter_with_its_default(name: str, kind: type[Method] | type[Compressor]) -> None:
    (row,) = re.findall(rf"^\| `{re.escape(name)}` \| (`\w+[=`].*) \|$", PAGE, re.MULTILINE)
    listed: dict[str, str] = dict(re.findall(r"`(\w+)(?:=([^`]*))?`", row))
    assert list(listed) == list(defaults(kind))
    assert [key for key, value in listed.items() if not value] == [
        key for key, value in defaults(kind).items() if value is None
    ]

    prefix = f"{name}." if issubclass(kind, Compressor) else ""
    given = {
        f"{prefix}{key}": value.split(",") if "," in value else value for key, value in listed.items() if value
    }
    assert open_recipe(name, shares_in_thousandths(name, given)).parameters == open_recipe(name, {}).parameters


def test_python_tells_parameters_as_a_person_gives_them() -> None:
    assert inspect.signature(edge_fl.FedDrop).parameters["dropout"].default == 0.5
    assert inspect.signature(edge_fl.HeteroFL).parameters["levels"].default == ("a", "b", "c", "d", "e")
    text = inspect.getdoc(edge_fl.HeteroFL) or ""
    assert text.startswith("HeteroFL (Diao et al., 2021)")
    assert "Draw a client's level anew each round" in text
    shared, own = inspect.getdoc(edge_fl.FedBIAD) or "", inspect.getdoc(edge_fl.FedMP) or ""
    assert "The rate p in [0, 1)" in shared
    assert "The rate p in [0, 1)" not in own
    assert "The pruning ratio" in own
    assert pickle.loads(pickle.dumps(edge_fl.TCS)) is edge_fl.TCS


def test_a_parameter_that_there_is_none_of_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"edge_fl\.HeteroFL takes levels, .*, static, and no 'level'"):
        edge_fl.HeteroFL(level="a")


def test_a_compressor_alone_takes_its_parameters() -> None:
    assert recipe_and_parameters(edge_fl.TCS(bits=5), {})[:2] == ("tcs", {"tcs.bits": 5})
    with_momentum = edge_fl.TopK(ratio=0.1) + edge_fl.ServerMomentum(0.5)
    assert recipe_and_parameters(with_momentum, {})[1] == {"topk.ratio": 0.1, "server.momentum": 0.5}


@pytest.mark.parametrize("name", ["tcs", "fedbiad+tcs"])
def test_a_compressors_parameter_without_its_name_is_told_with_it(name: str) -> None:
    with pytest.raises(ConfigError, match=r"'bits' is of the compressor 'tcs': write 'tcs\.bits'"):
        open_recipe(name, {"bits": 5})


def test_what_is_not_called_or_added_to_a_method_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="ServerMomentum is no method: add it to one"):
        recipe_and_parameters(edge_fl.ServerMomentum, {})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"not edge_fl\.TopK; call edge_fl\.TopK\(\)"):
        recipe_and_parameters(edge_fl.TopK, {})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'afd' is a method: add a compressor"):
        edge_fl.FedBIAD() + edge_fl.AFD()


def test_fjord_takes_the_parameters_of_the_method_that_it_makes() -> None:
    assert list(inspect.signature(edge_fl.FjORD).parameters) == [
        *("distil", "widths", "alpha", "temperature", "direction"),
    ]
    assert edge_fl.FjORD(distil=True, alpha=0.5).name == "fjord+kd"
    with pytest.raises(
        ConfigError, match=r"edge_fl\.FjORD takes distil, .*, and no 'width'\. Did you mean 'widths'"
    ):
        edge_fl.FjORD(width=(1.0, 0.5))
    with pytest.raises(ConfigError, match=r"'alpha' is of .*: give edge_fl\.FjORD distil=True"):
        edge_fl.FjORD(alpha=0.5)
