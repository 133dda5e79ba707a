"""Models of several inputs: proven in every runtime, trained as plain torch trains them, delivered as they were."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typer.testing import CliRunner

import edge_fl
from edge_fl.cli.main import app
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, EdgeFLError
from edge_fl.core.inputs import NamedInput
from exporter.named_inputs import named_values, with_example_inputs, with_named_inputs
from exporter.vocabulary import vocabularies_of


class Recommender(nn.Module):
    """Two embeddings, numbers of the visit, and a flag that silences it."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(30, 6), nn.Embedding(40, 6)
        self.hidden, self.out = nn.Linear(15, 16), nn.Linear(16, 4)

    def forward(self, user: Tensor, item: Tensor, visit: Tensor, known: Tensor) -> Tensor:
        joined = torch.cat([self.users(user) * known[:, None], self.items(item), visit], dim=1)
        return self.out(torch.relu(self.hidden(joined)))  # type: ignore[no-any-return]


class Padded(nn.Module):
    """Attention over the tokens that a mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.layer(self.tokens(input_ids), src_key_padding_mask=attention_mask == 0)
        real = attention_mask[..., None].to(hidden.dtype)
        return self.out((hidden * real).sum(1) / real.sum(1).clamp(min=1))  # type: ignore[no-any-return]


VISITS = (NamedInput("user", (), "int64"), NamedInput("item", (), "int64"), NamedInput("visit", (3,)))


def visits(n: int = 60) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    arrays = {
        "user": rng.integers(0, 30, n),
        "item": rng.integers(0, 40, n),
        "visit": rng.standard_normal((n, 3)).astype(np.float32),
        "known": rng.random(n) < 0.8,
    }
    return arrays, (arrays["user"] + arrays["item"]) % 4


def texts(n: int = 40) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    rng = np.random.default_rng(1)
    real = np.arange(9) < rng.integers(1, 10, n)[:, None]
    ids = rng.integers(1, 20, (n, 9)) * real
    return {"input_ids": ids, "attention_mask": real.astype(np.int64)}, ids.max(1) % 3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    torch.manual_seed(0)
    return edge_fl.export(
        Recommender(),
        visits(4)[0],
        runtimes=["onnx", "torch-eager"],
        output=tmp_path_factory.mktemp("visits") / "b",
    )


def test_a_bundle_says_what_the_model_takes(bundle: Bundle) -> None:
    assert bundle.manifest.inputs == (
        NamedInput("user", (), "int64", 30),
        NamedInput("item", (), "int64", 40),
        NamedInput("visit", (3,)),
        NamedInput("known", (), "bool"),
    )
    assert (bundle.manifest.input.shape, bundle.manifest.input.dtype) == ((6,), "float32")
    assert bundle.manifest.vocabulary == 0


@pytest.mark.parametrize("trainer", ["stacked", "runtime"])
def test_training_is_that_of_plain_torch(bundle: Bundle, tmp_path: Path, trainer: str) -> None:
    arrays, y = visits()
    run = edge_fl.simulate(
        bundle, (arrays, y), clients=1, fraction=1, rounds=1, local_steps=3, batch=60, lr=0.5, trainer=trainer,
        output=tmp_path / "run",
    )  # fmt: skip
    torch.manual_seed(0)
    model = Recommender()
    model.load_state_dict({n: torch.from_numpy(w) for n, w in bundle.weights().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        outputs = model(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        nn.functional.cross_entropy(outputs, torch.from_numpy(y)).backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(run.weights[name], tensor, atol=1e-5)


def test_a_delivered_file_takes_the_inputs_by_name(bundle: Bundle, tmp_path: Path) -> None:
    arrays, y = visits()
    edge_fl.simulate(bundle, (arrays, y), clients=2, fraction=1, rounds=1, output=tmp_path / "run")

    told = CliRunner().invoke(app, ["extract", str(tmp_path / "run"), "-o", str(tmp_path / "m.onnx")])
    assert told.exit_code == 0, told.output
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert {each.name: (each.type, each.shape[1:]) for each in session.get_inputs()} == {
        "user": ("tensor(int64)", []),
        "item": ("tensor(int64)", []),
        "visit": ("tensor(float)", [3]),
        "known": ("tensor(bool)", []),
    }
    model = Recommender()
    run = edge_fl.Run.open(tmp_path / "run")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in run.weights.items()})
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(array[:7]) for name, array in arrays.items()})
    (found,) = session.run(None, {name: array[:7] for name, array in arrays.items()})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    card = json.loads((tmp_path / "m.onnx.json").read_text())
    assert card["input"] is None
    assert [each["name"] for each in card["inputs"]] == list(arrays)


@pytest.mark.parametrize("runtime", ["onnx", pytest.param("executorch", marks=pytest.mark.matrix)])
def test_a_mask_is_proven_in_every_runtime(runtime: str, tmp_path: Path) -> None:
    """Half of what is dropped are heads."""
    torch.manual_seed(0)
    made = edge_fl.export(
        Padded(), texts(4)[0], runtimes=[runtime], widths=[1.0, 0.5], batch=10, output=tmp_path / "b"
    )
    assert {block.size for block in made.layout.blocks} == {2, 24}
    assert [each.vocabulary for each in made.manifest.inputs] == [20, 0]
    (parity,) = made.manifest.parity.values()
    assert parity.weights < 1e-5
    run = edge_fl.simulate(
        made, texts(), runtime=runtime, clients=2, fraction=1, rounds=1, local_steps=2, batch=10,
        output=tmp_path / "run", method=edge_fl.FjORD(widths=(0.5, 1.0)), test_data=texts(),
    )  # fmt: skip
    assert run.metrics[-1].scores["accuracy"] > 0


def test_an_embedding_is_known_by_the_input_that_it_reads() -> None:
    inputs = (NamedInput("attention_mask", (9,), "int64"), NamedInput("input_ids", (9,), "int64"))
    model = with_named_inputs(Padded(), inputs)
    x = torch.from_numpy(named_values(inputs, 3, np.random.default_rng(0)))
    assert vocabularies_of(model, x) == {"input_ids": 20}
    mixed = (*VISITS, NamedInput("known", (), "bool"))
    x = torch.from_numpy(named_values(mixed, 3, np.random.default_rng(0)))
    assert vocabularies_of(with_named_inputs(Recommender(), mixed), x) == {"user": 30, "item": 40}


def test_bytes_are_pixels_as_in_data() -> None:
    pixels = np.array([[0, 51], [102, 255]], np.uint8)
    _, sample, inputs = with_example_inputs(nn.Linear(2, 2), pixels)
    assert not inputs
    torch.testing.assert_close(sample, torch.tensor([[0.0, 0.2], [0.4, 1.0]]))


def test_made_up_masks_keep_the_first_position() -> None:
    """As Hugging Face has masks (1 is kept) and as torch has them (True is left out): a causal model sees something."""
    kinds = (NamedInput("a", (5,), "int64"), NamedInput("b", (5,), "bool"), NamedInput("c", (5,), "int64", 50))
    x = named_values(kinds, 20, np.random.default_rng(0))
    assert set(x[:, 0]) == {1}
    assert set(x[:, 1]) == {0}
    assert set(x[:, 5]) == {0}
    assert set(x[:, 6]) == {1}
    assert x[:, 10:].max() > 40


def test_names_that_forward_does_not_take_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not take the inputs user, item, visit, age \(.*\): name them as"):
        with_named_inputs(Recommender(), (*VISITS, NamedInput("age", ())))
    with pytest.raises(ConfigError, match=r"missing a required argument: 'known'"):
        with_named_inputs(Recommender(), VISITS)
    with pytest.raises(ConfigError, match="each with a name of its own"):
        with_named_inputs(Recommender(), VISITS * 2)
    with pytest.raises(ConfigError, match="not of one batch"):
        edge_fl.export(Recommender(), {**visits(4)[0], "user": np.zeros(3)}, output=tmp_path / "b")
    with pytest.raises(ConfigError, match="normalises them itself"):
        edge_fl.export(Recommender(), visits(4)[0], normalise=([0], [1]), output=tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (({"user": np.zeros(3)},), "cannot be of type 'tuple': give a tensor"),
        ({"user": ["a", "b"]}, "The 'user' of the model cannot be of type 'list'"),
    ],
)
def test_examples_that_are_no_tensors_are_one_sentence(example: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        edge_fl.export(Recommender(), example, output=tmp_path / "b")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("user:int64:int64", "such as input_ids:64:int64, with float32, int64, bool, not 'user:int64:int64'"),
        ("user:string", "not 'user:string'"),
        ("user:int64 --tokens", "leave --input-shape and --tokens out, or --input"),
        ("user", "tokens are whole numbers: give :int64 behind the shape of an --input"),
        ("user:int64 --columns user", "read from columns of their names: leave the columns out"),
        ("user:int64 --score perplexitty", "There is no score 'perplexitty'"),
        ("user:int64 --score mae", "mae"),
        ("user:int64 --loss crossentropy", "There is no loss 'crossentropy'"),
        ("user:int64 --cache-features", "Nothing of the model is frozen"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(tmp_path: Path, options: str, says: str) -> None:
    (tmp_path / "m.py").write_text(
        "from torch import nn\n"
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.e, self.o = nn.Embedding(9, 4), nn.Linear(4, 3)\n"
        "    def forward(self, user):\n"
        "        return self.o(self.e(user))\n"
        "def build(): return M()\n"
    )
    built, to = f"{tmp_path / 'm.py'}:build", str(tmp_path / "b")
    told = CliRunner().invoke(app, ["export", built, "--input", *options.split(), "--classes", "3", "-o", to])
    assert isinstance(told.exception, EdgeFLError)
    assert says in str(told.exception)
    assert not (tmp_path / "b").exists()
