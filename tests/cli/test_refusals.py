"""What comes from outside and is wrong: one sentence, its documented exit code, no traceback."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from broker import status
from broker.settings import RunSettings, read_settings
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import EdgeFLError, StateError
from tests.cli.in_process import command

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.CompletedProcess[str]]


def process(*words: str | Path) -> subprocess.CompletedProcess[str]:
    edge_fl = [sys.executable, "-m", "edge_fl", *map(str, words)]
    return subprocess.run(edge_fl, capture_output=True, text=True, timeout=60, check=False)


def refused(code: int, sentence: str, *words: str | Path, by: Start = command) -> None:
    done = by(*words)
    assert done.returncode == code, done.stderr
    assert re.search(sentence, done.stderr)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("edge-fl: ")
    assert last.endswith(".")
    assert "Traceback" not in done.stderr


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        yield busy.getsockname()[1]


def free_port() -> int:
    with taken_port() as port:
        return port


def test_broker_down(tmp_path: Path, digits_bundle: Bundle) -> None:
    url = f"mqtt://127.0.0.1:{free_port()}"
    sentence = "No MQTT broker answers at mqtt://127"
    device = ("device", "--broker", url, "--data", "digits", "--state", tmp_path, "--connect-timeout", "0.1")
    refused(16, sentence, *device, by=process)
    serve = ("serve", digits_bundle.root, "--broker", url, "-o", tmp_path / "run", "--connect-timeout", "0.1")
    refused(16, sentence, *serve, by=process)
    assert not (tmp_path / "run").exists()


def test_port_taken(digits_bundle: Bundle) -> None:
    with taken_port() as port:
        serve = ("serve", digits_bundle.root, "--port", str(port))
        refused(17, f"Port {port} of 127.0.0.1 is taken", *serve, by=process)


def test_no_device_comes(tmp_path: Path, digits_bundle: Bundle) -> None:
    serve = ("serve", digits_bundle.root, "--port", "0", "--wait", "0.1", "-o", tmp_path / "run")
    refused(19, "Only 0 of 10 devices were there", *serve, by=process)


def test_a_run_folder_is_not_overwritten(tmp_path: Path, digits_bundle: Bundle) -> None:
    (tmp_path / "config.json").write_text("{}")
    refused(21, "already holds a run", "serve", digits_bundle.root, "--port", "0", "-o", tmp_path)


def test_only_a_run_of_its_own_is_gone_on_with(tmp_path: Path, digits_bundle: Bundle) -> None:
    resume = ("serve", "--port", "0", "--resume", tmp_path)
    refused(21, "There is no run in", *resume)
    refused(21, "There is no run in", "status", tmp_path)
    refused(15, "--rounds cannot be changed: a run is continued with its own settings", *resume, "--rounds", "3")
    simulate = ("simulate", digits_bundle.root, "--clients", "2", "--fraction", "1", "--rounds", "1")
    assert process(*simulate, "--local-steps", "1", "-o", tmp_path).returncode == 0
    refused(21, f"was begun by another command: go on with edge-fl simulate --resume {tmp_path}", *resume)
    assert "Continue it with" not in command(*resume).stderr
    shown = command("status", tmp_path)  # which reads the record of either
    assert (shown.returncode, shown.stdout.partition(",")[2].partition(",")[0]) == (0, " 1 of 1 rounds")


@pytest.mark.parametrize("kind", [RunSettings, status._Settings])
def test_settings_of_another_version_are_not_another_command_s(kind: type[msgspec.Struct]) -> None:
    with pytest.raises(StateError, match="by another version of edge-fl"):
        read_settings(b'{"kind": "serve", "config": 5}', kind, Path("run"))


def test_a_run_needs_a_bundle() -> None:
    refused(15, "needs a bundle to train, or --resume", "serve", "--port", "0")


@pytest.mark.parametrize(
    ("code", "sentence", "options"),
    [
        (15, "no method 'fedbad'", ["--method", "fedbad"]),
        (15, "takes dropout, .*score_every, and no 'colour'", ["--method", "fedbiad", "--set", "colour=red"]),
        (
            15,
            "'rule' of the method 'fedbiad' is holders or zeros or mean",
            ["--method", "fedbiad", "--rule", "median"],
        ),
        (15, "must be in \\[0, 1\\)", ["--method", "fedbiad", "--dropout", "1.0"]),
        (
            15,
            "'dropout' of the method 'fedbiad': A share must .*, not -0.1",
            ["--method", "fedbiad", "--dropout", "-0.1"],
        ),
        (15, "not 30. 30 percent are 0.3", ["--method", "fedbiad", "--dropout", "0.2,30"]),
        (15, "share must be in \\[0, 1\\]", ["--method", "efd", "--set", "width=400"]),
        (
            15,
            "or, one a tier, 0.2,0.4, not 'half'",
            ["--method", "fedbiad", "--dropout", "half"],
        ),
        (
            15,
            "is a share such as 0.5 or, one a tier, .* not '0.5,'",
            ["--method", "fjord", "--widths", "0.5,"],
        ),
        (15, "share must be in \\[0, 1\\]", ["--method", "fjord", "--widths", "1.2"]),
        (15, "and no 'droput'. Did you mean 'dropout'", ["--method", "fedbiad", "--set", "droput=0.3"]),
        (15, "and best-uplink. Did you mean 'fedbiad'", ["--method", "fedbaid"]),
        (15, "takes widths, and no 'dropout'", ["--method", "fjord", "--dropout", "0.5"]),
        (15, "--set takes key=value", ["--set", "tau"]),
        (15, "number of rounds must be at least 1", ["--rounds", "0"]),
        (15, "number of clients per round must be at least 1", ["--clients-per-round", "0"]),
        (15, "above 0", ["--lr", "0"]),
        (15, "above 0", ["--lr", "nan"]),
        (15, "fractions of the rounds", ["--lr-drop", "1"]),
        (15, "fraction in \\(0, 1\\]", ["--quorum", "1.5"]),
        (15, "looks like mqtt://", ["--broker", "tcp://here"]),
        (15, "looks like mqtt://", ["--broker", "mqtt://"]),
        (15, "no broker address", ["--broker", "mqtt://host:port"]),
        (15, "holds no user or password", ["--broker", "mqtt://me:secret@host"]),
        (15, "is open to all who reach it.*--insecure", ["--broker", "mqtt://192.0.2.1"]),
        (15, "is open to all who reach it.*--insecure", ["--broker", "mqtts://192.0.2.1"]),
        (15, "would be open to all.*--insecure", ["--host", "0.0.0.0"]),
        (15, "would be open to all.*--insecure", ["--host", "::"]),
        (15, "are the embedded broker's", ["--broker", "mqtt://127.0.0.1", "--host", "0.0.0.0"]),
        (15, "go together", ["--broker", "mqtts://host", "--user", "me"]),
        (15, "'nowhere.pem' cannot be read", ["--cert", "nowhere.pem"]),
        (15, "'nowhere.pem' cannot be read", ["--identity", "nowhere.pem"]),
        (15, "asks for certificates in TLS only", ["--ca", "ca.pem"]),
        (15, "'nowhere' cannot be read", ["--passwords", "nowhere"]),
        (2, "No such option", ["--colour", "red"]),
        (2, "65535", ["--port", "99999"]),
    ],
)
def test_settings_that_make_no_sense(digits_bundle: Bundle, code: int, sentence: str, options: list[str]) -> None:
    done = command("serve", digits_bundle.root, "--port", "0", *options)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert re.search(sentence, done.stderr)


@pytest.mark.parametrize(
    ("code", "sentence", "options"),
    [
        (14, "digit", ["--data", "digitz"]),
        (14, "digits", ["--data", "digits:10/10"]),
        (15, "An id has 1 to 64", ["--data", "digits", "--id", "a/b"]),
        (15, "An id has 1 to 64", ["--data", "digits", "--id", ""]),
        (18, "no runtime 'tensorflow'", ["--data", "digits", "--runtime", "tensorflow"]),
        (14, "leaves none of the 1437 samples to train on", ["--data", "digits", "--test-share", "0.9999999"]),
        (15, r"is in \[0, 1\), not 1;", ["--data", "digits", "--test-share", "1"]),
    ],
)
def test_a_device_that_is_set_up_wrongly(tmp_path: Path, code: int, sentence: str, options: list[str]) -> None:
    refused(code, sentence, "device", "--broker", "mqtt://127.0.0.1:1", "--state", tmp_path / "s", *options)


def test_a_state_folder_of_another_device(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text('{"client": "a"}')
    device = ("device", "--broker", "mqtt://127.0.0.1:1", "--data", "digits", "--id", "b", "--state", tmp_path)
    refused(21, "belongs to client 'a'", *device)


def test_the_demo_names_its_data_sets() -> None:
    refused(15, "The demo knows digits", "demo", "--dataset", "imagenet")


def test_every_exit_code_is_documented() -> None:
    documented = (ROOT / "docs" / "exit-codes.md").read_text()
    for error in EdgeFLError.__subclasses__():
        code = error.exit_code
        assert f'| <a id="exit-{code}"></a>{code} | `{error.__name__}` |' in documented


@pytest.mark.parametrize("version", ["3.10", "2.7", "3.9"])
def test_a_python_that_is_too_old(tmp_path: Path, version: str) -> None:
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\necho {version}\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["sh", ROOT / "scripts" / "check-python", old], capture_output=True, text=True, check=False
    )
    assert done.returncode == 30
    assert f"Python 3.11 or newer is needed and '{old}' is {version}" in done.stderr


@pytest.mark.parametrize(("python", "code"), [(sys.executable, 0), ("no-such-python", 30)])
def test_a_python_that_will_do_and_one_that_is_not_there(python: str, code: int) -> None:
    done = subprocess.run(
        ["sh", ROOT / "scripts" / "check-python", python],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == code


@pytest.mark.parametrize("name", ["export", "inspect", "serve", "device", "fleet", "demo", "bench"])
def test_every_command_has_help(name: str) -> None:
    done = command(name, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout or name == "bench"


@pytest.mark.matrix
def test_grids_of_runs(tmp_path: Path) -> None:
    results = tmp_path / "runs.json"
    grid = ("bench", "table1", "--results", results)
    refused(15, "no setup for the data set 'ptb'; there are mnist,", *grid, "--dataset", "ptb")
    refused(15, "minutes from 0 on, not -1", *grid, "--dataset", "digits", "--time-budget", "-1")
    refused(15, "2, 4, 5, 8 or 10 clusters of clients, not 3", "bench", "heterogeneous", "--clusters", "3")
    refused(15, "'heterofl' trains no nested widths", "bench", "od", "--method", "heterofl")
    refused(15, "no variant 'l8' of TCS", "bench", "tcs", "--variant", "l8")
    refused(10, "no model 'lenet'", "bench", "vardrop", "--model", "lenet")
    results.write_text('[{"model": "digits-mlp"}]')
    refused(14, "does not hold this benchmark's results", *grid, "--dataset", "digits")


def test_fleets(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    refused(15, "cannot be read", "fleet", file)
    file.write_text("data: digits\ndevices: [{profile: abacus}]")
    refused(15, "no profile 'abacus'; there are jetson-nano,", "fleet", file)
    file.write_text("data: digits\ndevices: [{profile: phone-high, count: 500}]")
    refused(15, "need 500.00 cores, .* would do", "fleet", file)
    file.write_text("data: digits\ndevices: three")
    refused(15, "does not describe a fleet: Expected `array`", "fleet", file)
    file.write_text("{")
    refused(15, "does not describe a fleet", "fleet", file)
    file.write_text("data: digits\nscale: 100\ndevices: [{profile: phone-high}]")
    nobody = ("--broker", "mqtt://127.0.0.1:1", "--connect-timeout", "0.3")
    refused(16, "broker answers at mqtt://127.0.0.1:1: ", "fleet", file, *nobody)
