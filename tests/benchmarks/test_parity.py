"""The matrix of proofs: the exporter's own figures, each made once."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.parity import Proof, ProofSetting, bench_parity
from edge_fl.core.errors import ConfigError, DataError
from exporter.limits import LIMIT

_DIGITS = ProofSetting(("digits-mlp",), ("onnx",), ("sgd", "momentum"), narrowed=True)


def test_each_combination_is_proven_once_by_this_exporter_and_all_are_in_the_table(tmp_path: Path) -> None:
    results, said = tmp_path / "r.json", list[str]()
    other = Proof("digits-mlp", "narrowed", "onnx", "sgd", exporter="0" * 12, seconds=1.0, refused="No.")
    results.write_bytes(msgspec.json.encode([other]))
    first = ProofSetting(("digits-mlp",), ("onnx",), ("sgd",), narrowed=True)
    bench_parity(first, results, said.append)
    table = bench_parity(_DIGITS, results, said.append)

    assert said == ["digits-mlp, narrowed, onnx, sgd", "digits-mlp, narrowed, onnx, momentum"]
    assert not table.notes
    assert [row["optimiser"] for row in table.rows] == ["momentum", "sgd"]
    proofs = {proof.optimizer: proof for proof in msgspec.json.decode(results.read_bytes(), type=list[Proof])}
    assert 0 < proofs["sgd"].weights <= LIMIT
    assert proofs["sgd"].steps >= 5
    assert proofs["momentum"].weights != proofs["sgd"].weights


def test_wrong_settings_and_damaged_results_are_refused(tmp_path: Path) -> None:
    results = tmp_path / "r.json"
    with pytest.raises(ConfigError, match="no optimiser 'lion'"):
        bench_parity(ProofSetting(("digits-mlp",), ("onnx",), ("lion",), narrowed=True), results, print)
    results.write_text('[{"model": 1}]')
    with pytest.raises(DataError, match="does not hold"):
        bench_parity(_DIGITS, results, print)
