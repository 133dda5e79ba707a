"""The method printed in docs/extend.md works from a folder of its reader's own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edge_fl
from edge_fl.compressors.base import COMPRESSORS
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.recipes.own import plain_recipe
from edge_fl.recipes.recipe import open_recipe

ROOT = Path(__file__).parents[2]


def printed() -> str:
    """The method of docs/extend.md."""
    (text,) = re.findall(
        r"<!-- file: random_dropout.py -->\n```python\n(.*?)```",
        (ROOT / "docs" / "extend.md").read_text(),
        re.DOTALL,
    )
    return str(text)


def simulate(folder: Path, bundle: Bundle, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_fl", "simulate", str(bundle.root), "--clients", "4", "--fraction", "1"]
    command += ["--rounds", "2", "--local-steps", "3", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def resume(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_fl", "simulate", "--resume", "mine"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_method_is_one_file_in_a_folder_of_one_s_own(tmp_path: Path, digits_bundle: Bundle) -> None:
    (tmp_path / "random_dropout.py").write_text(printed())
    own = ("--method", "random_dropout.py:RandomDropout", "--dropout", "0.4")
    done = simulate(tmp_path, digits_bundle, *own, "-o", "mine", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "random_dropout"
    halves = simulate(tmp_path, digits_bundle, *own, "-o", "two", "--processes", "2")
    assert halves.returncode == 0, halves.stderr
    one, two = (tmp_path / name / "weights.safetensors" for name in ("mine", "two"))
    assert one.read_bytes() == two.read_bytes()
    record = json.loads((tmp_path / "mine" / "config.json").read_text())
    assert (record["method"], record["code"]) == (
        "random_dropout",
        [f"{tmp_path}/random_dropout.py:RandomDropout"],
    )
    assert (record["about"]["parameters"], record["about"]["defaults"]) == ({"dropout": 0.4}, [])
    again = resume(tmp_path)
    assert again.returncode == 0, again.stderr
    assert "was another file" not in again.stderr
    (tmp_path / "random_dropout.py").write_text(printed() + "# changed\n")
    changed = resume(tmp_path)
    assert changed.returncode == 0, changed.stderr
    assert f"'{tmp_path}/random_dropout.py' was another file when the run began" in changed.stderr
    (tmp_path / "random_dropout.py").unlink()
    gone = resume(tmp_path)
    assert gone.returncode == 15
    assert f"There is no Python file '{tmp_path}/random_dropout.py'" in gone.stderr


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("class Mine: pass", "is no method, compressor, metric or robust rule"),
        pytest.param("x = 5", "has no 'Mine'", marks=pytest.mark.matrix),
        ("1 / 0", r"cannot be imported: ZeroDivisionError: division by zero"),
        (
            "from edge_fl.methods.base import Method\nclass Mine(Method): name = 'mine'",
            "The method '.*' lacks Parameters, counts, local, mode, rule",
        ),
        (
            "from edge_fl.methods.fedavg import METHOD\nclass Mine(METHOD): name = 'fedbiad'",
            "There is a method 'fedbiad' already",
        ),
        pytest.param(
            "from edge_fl.methods.fedavg import METHOD\nclass Mine(METHOD): name = 'a/b'",
            "needs a name without ':'",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_a_broken_method_is_one_sentence_and_writes_nothing(
    tmp_path: Path, digits_bundle: Bundle, content: str, sentence: str
) -> None:
    (tmp_path / "mine.py").write_text(content)
    refused = simulate(tmp_path, digits_bundle, "--method", "mine.py:Mine", "-o", "never")
    assert re.search(sentence, refused.stderr), refused.stderr
    assert refused.stderr.count("\n") == 1
    assert refused.returncode == 15
    assert not (tmp_path / "never").exists()


def test_a_method_that_raises_in_a_run_is_one_sentence_with_the_place(
    tmp_path: Path, digits_bundle: Bundle
) -> None:
    (tmp_path / "mine.py").write_text(
        "from edge_fl.methods.fedavg import METHOD\n"
        "class Mine(METHOD):\n"
        "    name = 'mine'\n"
        "    def assign(self, ask):\n"
        "        return {}['nothing']\n"
    )
    refused = simulate(tmp_path, digits_bundle, "--method", "mine.py:Mine", "-o", "run")
    assert refused.returncode == 15
    last = refused.stderr.strip().splitlines()[-1]
    assert last == f"edge-fl: Your code in '{tmp_path}/mine.py', line 5, raises KeyError: 'nothing'."


COMPRESSOR = """
import msgspec
import numpy as np
from edge_fl.compressors.base import Compressed, Compressor
class Mine(Compressor):
    name, memory, Parameters = "mine", ("residual",), msgspec.defstruct("Parameters", [])
    def compress(self, values, memory, context, stream):
        {compress}
    def decompress(self, section, context):
        {decompress}
"""
KEPT = "return Compressed(values.tobytes(), {'residual': memory['residual']})"
READ = "return np.frombuffer(section, np.float32)"


BROKEN = {
    "compress": (
        "return {}['nothing']",
        READ,
        r"Your code in '.*/mine\.py', line 8, raises KeyError: 'nothing'",
        15,
    ),
    "decompress": (
        KEPT,
        "return {}['nothing']",
        r"Your code in '.*/mine\.py', line 10, raises KeyError: 'nothing'",
        15,
    ),
    "numbers": (KEPT, READ + "[1:]", r"decompress\(\) of 'mine' gives floats \(\d+,\), not float32 \(\d+,\)", 19),
    "list": (KEPT, READ + ".tolist()", r"decompress\(\) of 'mine' gives floats \(\d+,\), not list", 19),
    "memory": (
        "return Compressed(values.tobytes(), {})",
        READ,
        r"gives the memory \[\], and keeps \['residual'\]",
        19,
    ),
    "length": (
        KEPT.replace("]}", "][1:]}"),
        READ,
        r"gives 'residual' the shape \(\d+,\), and \d+ entries are kept",
        19,
    ),
    "nothing": ("return None", READ, r"compress\(\) of 'mine' gives NoneType, and not a Compressed", 19),
}


IN_TURN = [(broken, "1") for broken in BROKEN if broken not in ("compress", "numbers")] + [("compress", "2")]


@pytest.mark.parametrize(
    ("broken", "processes"),
    [
        *(("compress", "1"), ("numbers", "1"), ("decompress", "2")),
        *(pytest.param(*each, marks=pytest.mark.matrix) for each in IN_TURN),
    ],
)
def test_a_broken_compressor_is_one_sentence_in_any_process(
    tmp_path: Path, digits_bundle: Bundle, broken: str, processes: str
) -> None:
    compress, decompress, sentence, code = BROKEN[broken]
    (tmp_path / "mine.py").write_text(COMPRESSOR.format(compress=compress, decompress=decompress))
    words = ("--method", "mine.py:Mine", "-o", "run", "--processes", processes)
    refused = simulate(tmp_path, digits_bundle, *words)
    assert re.search(sentence, refused.stderr.strip().splitlines()[-1]), refused.stderr
    assert refused.returncode == code


@pytest.mark.parametrize("processes", [1, 2])
def test_python_gets_the_error_itself(
    tmp_path: Path, digits_bundle: Bundle, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(COMPRESSORS, "_used", {})
    file = tmp_path / "own.py"
    file.write_text(COMPRESSOR.format(compress="return {}['nothing']", decompress=READ).replace("Mine", "Own"))
    with pytest.raises(KeyError, match="nothing"):
        edge_fl.simulate(
            digits_bundle,
            method=f"{file}:Own",
            clients=4,
            fraction=1.0,
            rounds=1,
            processes=processes,
            output=tmp_path / "run",
        )


@pytest.mark.parametrize("name", ["mine.py:Mine", "package.module:Mine", "../fedavg", "fedavg+mine.py:Mine"])
def test_a_task_names_plain_names_only(name: str) -> None:
    with pytest.raises(ConfigError, match="is no plain name of a method: no code comes with a task"):
        open_recipe(name, {})


def test_names_of_ours_pass_as_they_are() -> None:
    assert plain_recipe("fjord+kd+dgc") == ("fjord+kd+dgc", ())


@pytest.mark.parametrize(
    ("half", "sentence"),
    [
        ("None", "What local() of 'random_dropout' returns is a LocalHalf, not NoneType."),
        pytest.param(
            "LocalHalf(None)", "The 'step' of a LocalHalf is a LocalStep, not NoneType.", marks=pytest.mark.matrix
        ),
        pytest.param(
            "LocalHalf(LocalStep([1, 0]))",
            "The first argument of LocalStep is a Pattern, not list.",
            marks=pytest.mark.matrix,
        ),
        (
            "LocalHalf(LocalStep(Pattern.full(job.layout)))",
            "where the method's counts() say 16: a method that draws counts overrides check().",
        ),
    ],
)
def test_a_method_that_gives_the_wrong_thing_is_told_so(
    half: str, sentence: str, tmp_path: Path, digits_bundle: Bundle
) -> None:
    text, found = re.subn(r"return LocalHalf\(.*", f"return {half}", printed())
    assert found == 1
    (tmp_path / "random_dropout.py").write_text(text)
    done = simulate(tmp_path, digits_bundle, "--method", "random_dropout.py:RandomDropout", "-o", "mine")
    assert sentence in done.stderr
    assert done.stderr.count("\n") <= 3


def test_a_file_without_a_class_is_no_method() -> None:
    with pytest.raises(ConfigError, match=r"name the class in it, as in 'mine\.py:CLASS'"):
        plain_recipe("mine.py")
