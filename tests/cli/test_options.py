from edge_fl.cli.options import runtime_name
from edge_fl.runtimes.base import runtime_names


def test_a_runtime_may_be_written_with_a_dash() -> None:
    assert {runtime_name(name.replace("_", "-")) for name in runtime_names()} == set(runtime_names())
