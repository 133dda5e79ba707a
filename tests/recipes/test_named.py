"""Methods and what is added to them, in Python."""

import pytest

import edge_fl
from edge_fl.core.errors import ConfigError
from edge_fl.recipes.named import recipe_and_parameters


def test_momentum_is_added_to_a_method_with_or_without_a_compressor() -> None:
    plain = edge_fl.FedAvg() + edge_fl.ServerMomentum(0.9)
    assert recipe_and_parameters(plain, {})[:2] == ("fedavg", {"server.momentum": 0.9})
    both = edge_fl.FedDrop(dropout=0.25) + edge_fl.ServerMomentum(0.5) + edge_fl.TopK(ratio=0.1)
    expected = {"dropout": [250], "server.momentum": 0.5, "topk.ratio": 0.1}
    assert recipe_and_parameters(both, {})[:2] == ("feddrop+topk", expected)


def test_momentum_is_no_method_and_is_added_once() -> None:
    with pytest.raises(ConfigError, match="ServerMomentum is no method: add it to one"):
        recipe_and_parameters(edge_fl.ServerMomentum(0.9), {})
    with pytest.raises(ConfigError, match="ServerMomentum is no method"):
        edge_fl.ServerMomentum(0.9) + edge_fl.FedAvg()
    with pytest.raises(ConfigError, match="has momentum on the server already"):
        edge_fl.FedAvg() + edge_fl.ServerMomentum(0.5) + edge_fl.ServerMomentum(0.9)
