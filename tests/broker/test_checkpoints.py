"""Models of the last rounds, in a folder and in a bucket."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer

from broker.checkpoints import Checkpoints
from edge_fl.core.errors import ConfigError, StateError

WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
LEARNED = {"method.scores": np.arange(3.0)}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An S3 server of our own."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "anyone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3").create_bucket(Bucket="models")
        yield "s3://models"
    server.stop()


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "deep" / "checkpoints")
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"


def test_the_last_models_are_there_for_who_goes_on(place: str) -> None:
    checkpoints = Checkpoints(place)
    for number in range(1, 6):
        checkpoints.keep(number, {"w": number * WEIGHTS["w"]}, LEARNED)
        checkpoints.prune(number)
    again = Checkpoints(place)
    for number in (3, 4, 5):
        weights, learned = again.model(number)
        assert weights["w"].tobytes() == (number * WEIGHTS["w"]).tobytes()
        assert learned["method.scores"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(StateError, match="cannot be read"):
        again.model(2)


def test_what_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    others = ["bert.safetensors", "00098.safetensors", "notes.txt", "00001x.safetensors"]
    for name in others:
        (tmp_path / name).write_bytes(b"somebody's")
    checkpoints = Checkpoints(str(tmp_path))
    for number in range(1, 6):
        checkpoints.keep(number, WEIGHTS, LEARNED)
        checkpoints.prune(number)
    assert all((tmp_path / name).read_bytes() == b"somebody's" for name in others)
    assert sorted(p.name for p in tmp_path.glob("0000?.safetensors")) == [
        f"0000{i}.safetensors" for i in (3, 4, 5)
    ]


def test_a_password_is_not_told() -> None:
    with pytest.raises(ConfigError) as refused:
        Checkpoints("no-such-scheme://me:secret@host/x")
    assert "secret" not in str(refused.value)


def test_one_that_is_written_again_is_the_newer(place: str) -> None:
    checkpoints = Checkpoints(place)
    checkpoints.keep(1, WEIGHTS, LEARNED)
    checkpoints.keep(1, {"w": -WEIGHTS["w"]}, {})
    weights, learned = checkpoints.model(1)
    assert (weights["w"] <= 0).all()
    assert not learned


def test_a_damaged_one_is_told(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.keep(1, WEIGHTS, LEARNED)
    (tmp_path / "00001.safetensors").write_bytes(b"no tensors")
    with pytest.raises(StateError, match=r"model of round 1.*is damaged"):
        checkpoints.model(1)


@pytest.mark.parametrize("name", ["00001.safetensors", "00001.learned.npz"])
def test_a_flipped_bit_anywhere_in_what_is_read_is_told(tmp_path: Path, name: str) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.keep(1, WEIGHTS, LEARNED)
    file, found = tmp_path / name, checkpoints.model(1)
    content = file.read_bytes()
    told = 0
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            weights, learned = checkpoints.model(1)
        except StateError:
            told += 1
            continue
        np.testing.assert_equal(
            {**weights, **learned}, {**found[0], **found[1]}
        )  # a zip has bits without a meaning
    assert told == len(content) if name.endswith("safetensors") else told > len(content) // 2


def test_a_place_that_is_none_is_refused(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be kept at 'no-such-scheme://x'"):
        Checkpoints("no-such-scheme://x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateError, match="cannot be written"):
        Checkpoints(str(tmp_path / "file" / "folder"))
    lost = Checkpoints("s3://no-such-bucket/run")
    with pytest.raises(StateError, match=r"The models at 's3://no-such-bucket/run' cannot be written"):
        lost.keep(1, WEIGHTS, LEARNED)


def test_where_the_last_is_damaged_the_one_before_it_is_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    for number in (1, 2, 3, 4):
        checkpoints.keep(number, {"w": np.full(3, number, np.float32)}, LEARNED)
        checkpoints.prune(number)
    assert checkpoints.newest(4)[0] == 4
    (tmp_path / "00004.safetensors").write_bytes(b"no tensors")
    (tmp_path / "00003.learned.npz").unlink()
    number, weights, learned = checkpoints.newest(4)
    assert (number, weights["w"].tolist()) == (2, [2.0] * 3)
    assert learned.keys() == LEARNED.keys()
    assert "The model of round 4" in caplog.text
    assert "00003.learned.npz" in caplog.text
    (tmp_path / "00002.safetensors").write_bytes(b"")
    with pytest.raises(StateError, match=r"No model at .* is sound"):
        checkpoints.newest(4)
