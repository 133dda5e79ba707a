"""An export replaces a bundle, and nothing else."""

from pathlib import Path

import pytest
import torch
from torch import nn

import edge_fl
from edge_fl.core.errors import ConfigError
from exporter.output_folder import check_output


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (("weights.safetensors",), "holds 'weights.safetensors' and no bundle: give another folder"),
        (
            ("config.json", "metrics.jsonl", "weights.safetensors"),
            "holds a run and no bundle: give another folder",
        ),
    ],
)
def test_a_folder_of_something_else_is_left_alone(files: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(ConfigError, match=sentence):
        edge_fl.export(nn.Linear(2, 2), torch.zeros(2, 2), output=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(files, b"mine")


def test_a_file_and_a_folder_within_a_bundle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file: give a folder"):
        check_output(tmp_path / "file")
    (tmp_path / "manifest.json").touch()
    with pytest.raises(ConfigError, match="lies in a bundle"):
        check_output(tmp_path / "onnx")


def test_a_bundle_is_replaced_and_other_files_beside_it_stay(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    first = edge_fl.export(nn.Linear(2, 2), torch.zeros(2, 2), output=tmp_path).digest
    second = edge_fl.export(nn.Linear(2, 3), torch.zeros(2, 2), output=tmp_path)
    assert edge_fl.Bundle.load(tmp_path).digest == second.digest != first
    assert (tmp_path / "model.py").exists()
