"""What of a model is trained, by name, and from which weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from edge_fl.cli.main import app
from edge_fl.core.bundle import FROZEN_TENSOR, TENSOR, Bundle
from edge_fl.core.errors import ConfigError, EdgeFLError, ModelError
from edge_fl.core.frozen import FROZEN
from exporter.api import export
from exporter.dropout import without_dropout
from exporter.fine_tuning import train_only
from exporter.pretrained import load_weights


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def trained(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (["5.*"], {"5.weight", "5.bias"}),
        (["norm", "5.bias"], {"1.weight", "1.bias", "5.bias"}),
        (["bias"], {"0.bias", "1.bias", "3.bias", "5.bias"}),
        (["lora:3:r=2"], {"3.lora_A.weight", "3.lora_B.weight"}),
        (
            ["lora:*:r=2", "1.*"],
            {f"{n}.lora_{a}.weight" for n in (0, 3, 5) for a in "AB"} | {"1.weight", "1.bias"},
        ),
    ],
)
def test_what_is_named_is_trained(choices: list[str], expected: set[str]) -> None:
    whole = model()
    assert trained(train_only(whole, choices)) == expected
    assert len(trained(whole)) == 8


def test_biases_are_those_of_attention_and_recurrent_layers_too() -> None:
    whole = nn.Sequential(nn.MultiheadAttention(8, 2), nn.GRU(8, 4))
    assert trained(train_only(whole, ["bias"])) == {
        *("0.in_proj_bias", "0.out_proj.bias"),
        *("1.bias_ih_l0", "1.bias_hh_l0"),
    }


def test_a_pattern_of_adapters_passes_over_layers_that_have_none() -> None:
    whole = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 1), nn.Flatten(), nn.Linear(8, 1))
    assert trained(train_only(whole, ["lora:*:r=2"])) == {"1.lora_A.weight", "1.lora_B.weight"}
    for choice, says in [("lora:0:r=2", "a convolution in groups"), ("lora:3:r=2", "no more than 1 ranks")]:
        with pytest.raises(ModelError, match=says):
            train_only(whole, [choice])


def test_an_adapter_begins_as_nothing_and_has_alpha_over_r() -> None:
    whole, x = model(), torch.randn(4, 6)
    adapted = train_only(whole, ["lora:3:r=2:alpha=8"])
    assert torch.equal(adapted(x), whole(x))
    layer = adapted[3]  # type: ignore[index]
    nn.init.ones_(layer.lora_B.weight)
    h = torch.randn(4, 8)
    expected = layer.base_layer(h) + 4 * (h @ layer.lora_A.weight.T).sum(1, keepdim=True)
    assert torch.allclose(layer(h), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "x"),
    [(nn.Linear(6, 5), torch.randn(4, 6)), (nn.Conv2d(3, 5, 3, stride=2, padding=1), torch.randn(4, 3, 8, 8))],
    ids=["linear", "convolution"],
)
def test_the_weight_of_a_layer_with_an_adapter_has_the_adapters(layer: nn.Module, x: Tensor) -> None:
    adapted = train_only(nn.Sequential(layer), ["lora:0:r=2"])[0]  # type: ignore[index]
    nn.init.normal_(adapted.lora_B.weight)
    expected = adapted(x)
    layer.weight = nn.Parameter(adapted.weight)
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_adapters_of_torchs_attention_train_although_torch_calls_no_layer_there(tmp_path: Path) -> None:
    """torch reads the weight of an output projection, and of all layers where it takes its shortcut."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3))
    bundle = export(model, torch.randn(2, 4, 8), train=["lora:0.*:r=2", "2.*"], output=tmp_path / "bundle")
    assert {block.name: block.size for block in bundle.layout.blocks} == {
        f"0.{layer}.lora_A": 2 for layer in ("self_attn.out_proj", "linear1", "linear2")
    }


def test_heads_and_ranks_of_an_adapter_behind_them_are_units_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3))
    bundle = export(model, torch.randn(2, 4, 8), train=["lora:out_proj:r=2", "0.*"], output=tmp_path / "bundle")
    down = bundle.layout.tensor("0.self_attn.out_proj.lora_A.weight")
    blocks = [segment.block for axis in down.units for segment in axis]
    assert blocks == ["0.self_attn.out_proj.lora_A", "0.self_attn.heads"]


@pytest.mark.parametrize(
    ("choice", "error", "says"),
    [
        ("head.*", ModelError, "names no parameter"),
        ("lora:q_proj:r=2", ModelError, "names no layer"),
        ("3", ModelError, r"names no parameter of the model, which has .*: did you mean '3\.\*'\.$"),
        ("3.wieght", ModelError, r"did you mean '3\.weight'\.$"),
        ("lora:3:r=7", ModelError, "no more than 6 ranks"),
        ("lora:1:r=2", ModelError, "LayerNorm"),
        ("lora:3", ConfigError, "r=RANK"),
        ("lora:,:r=2", ConfigError, "names no adapters"),
        ("lora:3:r=0", ConfigError, "asks for adapters of rank 0: take 1 or more"),
        ("lora:3,value:r=2", ModelError, "'value' in 'lora:3,value:r=2' names no layer of the model, which has "),
        ("lora:3:r=2:alpha=0", ConfigError, "above 0"),
        ("lora:3:r=2:beta=1", ConfigError, "r=RANK"),
    ],
)
def test_a_choice_that_makes_no_sense(choice: str, error: type[EdgeFLError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        train_only(model(), [choice])
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose ranks of an adapter are a block, and all else frozen but a droppable layer before it."""
    folder = tmp_path_factory.mktemp("tuned")
    return export(model(), torch.randn(4, 6), train=["lora:3:r=4", "0.*"], output=folder, widths=(1.0, 0.5))


def test_ranks_are_a_block_and_frozen_tensors_are_in_no_frame(tuned: Bundle) -> None:
    layout = tuned.layout
    assert [(block.name, block.size) for block in layout.blocks] == [("3.lora_A", 4)]
    assert [tensor.name for tensor in layout.tensors] == [
        *("0.weight", "0.bias", "3.lora_A.weight", "3.lora_B.weight"),
    ]
    assert {tensor.name for tensor in layout.frozen} == {
        *("1.weight", "1.bias", "3.base_layer.weight", "3.base_layer.bias", "5.weight", "5.bias"),
    }
    program = tuned.manifest.step_program("onnx", "plain", {}, 20)
    assert program is not None
    assert f"{FROZEN_TENSOR}5.weight" in program.inputs
    assert f"new.{TENSOR}5.weight" not in program.outputs
    assert tuned.manifest.program_files("onnx")[-1] == FROZEN
    dense = (
        "'3.base_layer', '3.lora_B', '5' stay dense: a frozen tensor has the same units, and keeps all of them."
    )
    assert dense in tuned.manifest.notes


def test_a_damaged_file_of_frozen_tensors_is_found(tuned: Bundle, tmp_path: Path) -> None:
    for name in ("manifest.json", "manifest.sha256", *tuned.manifest.program_files("onnx")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(tuned.read(name))
    Bundle.load(tmp_path, runtime="onnx")
    content = bytearray(tuned.read(FROZEN))
    content[5] ^= 1
    (tmp_path / FROZEN).write_bytes(content)
    with pytest.raises(EdgeFLError, match="damaged"):
        Bundle.load(tmp_path, runtime="onnx")


def test_weights_come_from_a_file_or_a_folder(tmp_path: Path) -> None:
    first, second = model(), model()
    for parameter in second.parameters():
        nn.init.normal_(parameter)
    state = second.state_dict()
    save_file(state, tmp_path / "model.safetensors")
    for source in (tmp_path, tmp_path / "model.safetensors"):
        loaded = model()
        load_weights(loaded, source)
        assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), second.parameters(), strict=True))
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, name in enumerate(state):
        save_file({name: state[name].half()}, parts / f"{number}.safetensors")
    index = {"weight_map": {name: f"{number}.safetensors" for number, name in enumerate(state)}}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    load_weights(first, parts)
    assert torch.allclose(first[0].weight, second[0].weight, atol=1e-2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("0.weight"), "lacks '0.weight'"),
        (lambda state: state.update({"0.weight": torch.zeros(2, 2)}), "has the shape"),
    ],
)
def test_other_weights_are_refused(tmp_path: Path, change: object, says: str) -> None:
    state = dict(model().state_dict())
    change(state)  # type: ignore[operator]
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=says):
        load_weights(model(), tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    "change", [lambda state: state.pop("0.weight"), lambda state: state.update({"0.weight": torch.zeros(2, 2)})]
)
def test_a_new_layer_begins_as_it_is_built(tmp_path: Path, change: object) -> None:
    pretrained, built = model(), model()
    for parameter in (*pretrained.parameters(), *built.parameters()):
        nn.init.normal_(parameter)
    state = dict(pretrained.state_dict())
    change(state)  # type: ignore[operator]
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=r"--new '0\.\*'"):
        load_weights(model(), tmp_path / "w.safetensors")
    before = built[0].weight.clone()  # type: ignore[operator]
    load_weights(built, tmp_path / "w.safetensors", ["0.*"])
    assert torch.equal(built[0].weight, before)  # type: ignore[arg-type]
    assert torch.equal(list(built.parameters())[-1], list(pretrained.parameters())[-1])
    with pytest.raises(ModelError, match=r"'head\.\*' names no parameter of the model, which has '0\.weight'"):
        load_weights(built, tmp_path / "w.safetensors", ["head.*"])
    with pytest.raises(ModelError, match="names all there is"):
        load_weights(built, tmp_path / "w.safetensors", ["*"])


class Wrapped(nn.Module):
    """As a classifier of Hugging Face has a body."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, self.classifier = model(), nn.Linear(3, 2)


def test_one_part_before_all_names_may_differ(tmp_path: Path) -> None:
    pretrained = model()
    for parameter in pretrained.parameters():
        nn.init.normal_(parameter)
    state = pretrained.state_dict()
    save_file({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "parallel.safetensors")
    save_file({**state, "pooler.weight": torch.zeros(2)}, tmp_path / "body.safetensors")
    of_ddp, whole = model(), Wrapped()
    loaded = load_weights(of_ddp, tmp_path / "parallel.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(of_ddp.parameters(), pretrained.parameters(), strict=True))
    assert loaded.text == (
        f"{len(state)} tensors are from '{tmp_path / 'parallel.safetensors'}', whose names have 'module.' before the "
        "model's"
    )
    loaded = load_weights(whole, tmp_path / "body.safetensors", ["classifier.*"])
    assert all(torch.equal(a, b) for a, b in zip(whole.bert.parameters(), pretrained.parameters(), strict=True))
    assert loaded.text.endswith(
        "whose names lack 'bert.', and 2 begin anew: 'classifier.weight', 'classifier.bias'; 1 of the file are not used"
    )


def test_names_that_are_not_the_models_are_refused(tmp_path: Path) -> None:
    twins = nn.ModuleDict({"left": model(), "right": model()})
    save_file(model().state_dict(), tmp_path / "one.safetensors")
    save_file({"other": torch.zeros(2)}, tmp_path / "other.safetensors")
    for file, held in (("one", twins), ("other", model())):  # twins: which of the two it is nobody says
        with pytest.raises(
            ModelError, match=r"has no name of the model's: it has .*give the file's tensors the names"
        ):
            load_weights(held, tmp_path / f"{file}.safetensors")


def test_a_file_of_torch_save_is_told(tmp_path: Path) -> None:
    torch.save(model().state_dict(), tmp_path / "w.pth")
    with pytest.raises(ModelError, match=r"a file of torch\.save.*save_file\(state_dict, 'w\.safetensors'\)"):
        load_weights(model(), tmp_path / "w.pth")


def test_a_new_layer_that_is_not_trained_is_told(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))\n"
    )
    save_file({"0.weight": torch.zeros(6, 4), "0.bias": torch.zeros(6)}, tmp_path / "w.safetensors")
    command = ["export", str(tmp_path / "net.py:build"), "--input-shape=4"]
    command += [
        "--classes=3",
        f"--weights={tmp_path / 'w.safetensors'}",
        "--new=2.*",
        f"--output={tmp_path / 'b'}",
    ]
    said = []
    for train in (["--train=lora:0:r=2"], ["--train=lora:0:r=2", "--train=2.*"]):
        done = CliRunner().invoke(app, [*command, *train])
        assert done.exit_code == 0, done.output
        said.append(done.output)
    assert "2 tensors are from" in said[0]
    assert "warning: '2.weight' is new and not trained: it stays as it was drawn; add --train '2.*'" in said[0]
    assert "warning" not in said[1]
    assert (tmp_path / "b" / "manifest.json").exists()


@pytest.mark.parametrize("content", [b"", b"\x00" * 20, b"\xff" * 100])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read"):
        load_weights(model(), tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match="holds neither"):
        load_weights(model(), tmp_path)


def test_an_index_may_not_lead_elsewhere(tmp_path: Path) -> None:
    index = {"weight_map": {"0.weight": "../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="no file of that folder"):
        load_weights(model(), tmp_path)


def test_dropout_is_set_to_nothing() -> None:
    wild = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.MultiheadAttention(6, 2, dropout=0.3))
    still = without_dropout(wild)
    assert (still[1].p, still[2].dropout) == (0.0, 0.0)  # type: ignore[index]
    assert wild[1].p == 0.5


class Scaled(nn.Module):
    """Holds plain tensors, which torch moves and saves with nothing."""

    hidden: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
        self.inner.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])  # type: ignore[assignment]
        self.offset = torch.tensor([0.5])

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.inner(x * self.inner.scale).relu()) + self.offset
        return outputs


def test_a_plain_tensor_that_forward_reads_is_frozen(tmp_path: Path) -> None:
    model = Scaled()
    bundle = export(model, torch.zeros(2, 4), output=tmp_path / "bundle")

    assert bundle.frozen.whole["inner.scale"].tolist() == [1, 2, 3, 4]
    assert bundle.frozen.whole["offset"].tolist() == [0.5]
    assert "scale" in vars(model.inner)  # the user's own model stays as it is


def test_a_tensor_that_is_computed_of_parameters_is_refused_in_a_sentence(tmp_path: Path) -> None:
    model = Scaled()
    model.offset = model.out.bias[:1] * 2
    model.hidden = torch.zeros(1)  # the class has the name, too
    with pytest.raises(EdgeFLError):
        export(model, torch.zeros(2, 4), output=tmp_path / "bundle")
