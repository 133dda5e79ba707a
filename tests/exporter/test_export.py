from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import edge_fl
from broker.recipe_checks import check_recipe
from edge_fl.core.bundle import Bundle, Optimizer, Parity
from edge_fl.core.errors import BundleError, ConfigError, ParityError, RuntimeMissingError, UnsupportedModelError
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from exporter import optimizers, parity
from exporter.export import Target, export_bundle
from exporter.forward import build_evaluation
from exporter.limits import LIMIT, DifferenceError
from exporter.lower import Request, lower_for
from exporter.parity import _Programs as Programs
from exporter.parity import check_parity
from exporter.reference import Given
from exporter.steps import STEPS
from exporter.zoo import mlp
from tests.exporter import models
from tests.exporter.sources import source


def target(*runtimes: str, widths: tuple[int, ...] = (1000, 500), batch: int = 6) -> Target:
    return Target("model", "made-up", Input((6,), "float32"), 3, runtimes, widths=widths, batch=batch)


def test_every_runtime_is_within_the_limit_of_torch_after_steps_with_changing_patterns(
    digits_bundle: Bundle,
) -> None:
    parity = digits_bundle.manifest.parity

    assert set(parity) == {"onnx", "executorch", "torch_eager"}
    assert all(0 < p.weights <= LIMIT and 0 < p.outputs <= LIMIT and p.steps >= 5 for p in parity.values())


def test_the_onnx_program_freezes_no_weight_width_or_batch(digits_bundle: Bundle) -> None:
    model = onnx.load_from_string(digits_bundle.read("onnx/step-plain.onnx"))
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }

    assert model.ir_version <= 10
    assert [opset.version for opset in model.opset_import if not opset.domain] == [18]
    assert all(len(tensor.dims) <= 1 for tensor in model.graph.initializer)
    first, second, batch = shapes["tensor.1.bias"][0], shapes["tensor.3.bias"][0], shapes["x"][0]
    assert len({first, second, batch}) == 3
    assert all(isinstance(name, str) for name in (first, second, batch))
    assert shapes["tensor.3.weight"] == [second, first]


@pytest.mark.parametrize(
    "model",
    [
        models.Residual,
        *(pytest.param(model, marks=pytest.mark.matrix) for model in (models.Concatenation, models.BothSigns)),
    ],
)
def test_models_of_no_zoo_train_as_torch_trains_them(model: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    bundle = export_bundle(model(), target("onnx", "torch_eager"), tmp_path / "bundle")

    assert Bundle.load(bundle.root).manifest == bundle.manifest


def test_every_activation_trains_and_what_stays_dense_is_noted_with_its_reason(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bundle = export_bundle(models.activations(), target("onnx", "torch_eager"), tmp_path / "bundle")

    assert [block.name for block in bundle.layout.blocks] == ["3", "5", "7", "11"]
    assert any("'0' stays dense" in note and "normalises" in note for note in bundle.manifest.notes)
    assert any("'9' stays dense" in note and "does not map 0 to 0" in note for note in bundle.manifest.notes)


def test_linear_layers_over_a_sequence_bind_the_trace_to_no_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bundle = export_bundle(models.Attention(), target("torch_eager"), tmp_path / "bundle")

    assert Bundle.load(bundle.root).manifest == bundle.manifest


class _CountsItsBatch(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = super().forward(x.reshape(int(x.shape[0]), 6))
        return outputs


def test_a_model_that_binds_the_trace_to_one_batch_is_refused(tmp_path: Path) -> None:
    model = _CountsItsBatch(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(UnsupportedModelError, match="fixes axis 0 of 'x'"):
        export_bundle(model, target("torch_eager"), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_an_operation_that_executorch_compiles_and_cannot_run_is_named_with_its_layer(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(
        UnsupportedModelError, match=r"^executorch cannot train 'aten\.adaptive_max_pool2d.*' in '1': "
    ):
        export_bundle(model, target("executorch", widths=(1000,)), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_program_that_ignores_the_scale_is_refused(tmp_path: Path) -> None:
    model = mlp.mlp(inputs=6, hidden=8, classes=3)
    right = source(model, (6,), 3)
    wrong = replace(right, scaled=())
    honest = export_bundle(model, target("torch_eager"), tmp_path / "honest")
    request = Request((STEPS.find("plain")(wrong),), build_evaluation(wrong), (1000, 500), 6)
    files = {program.file: data for program, data in lower_for(("torch_eager",), request, print)["torch_eager"]}
    files["weights.safetensors"] = honest.read("weights.safetensors")
    broken = Bundle.save(tmp_path / "broken", honest.manifest, files)

    check_parity(right, honest, "torch_eager", widths=(1000, 500), batch=6)
    with pytest.raises(ParityError, match="off by"):
        check_parity(right, broken, "torch_eager", widths=(1000, 500), batch=6)


@pytest.mark.parametrize("strays", [1, 2, 3])
def test_a_program_that_strays_in_one_draw_is_proven_in_the_next_of_three(
    strays: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, step, drawn = parity.plan_steps, Programs.step, list[int]()

    def planned(*args: object, draw: int, **more: object) -> object:
        drawn.append(draw)
        return plan(*args, draw=draw, **more)  # type: ignore[arg-type]

    def off(self: Programs, given: Given) -> float:
        return step(self, given) + (drawn[-1] < strays)

    monkeypatch.setattr(parity, "plan_steps", planned)
    monkeypatch.setattr(Programs, "step", off)
    model = mlp.mlp(inputs=6, hidden=8, classes=3)
    if strays < 3:
        proof = export_bundle(model, target("torch_eager"), tmp_path / "bundle").manifest.parity["torch_eager"]
        assert proof.weights <= LIMIT
        assert drawn[-1] == strays
    else:
        with pytest.raises(ParityError, match="off by"):
            export_bundle(model, target("torch_eager"), tmp_path / "bundle")
        assert set(drawn) == {0, 1, 2}


def large(factor: float) -> tuple[nn.Module, Target]:
    """Pretrained, as it were, on other samples than those of a proof."""
    torch.manual_seed(0)
    layers = (nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    model = nn.Sequential(*layers)
    for parameter in model.parameters():
        parameter.data *= factor
    return model, replace(target("torch_eager"), target=Input((3,), "float32"), loss="mse")


@pytest.mark.parametrize("wrong", [1.0, 1.2])
def test_a_model_that_diverges_is_proven_in_smaller_steps(
    wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = optimizers.apply
    monkeypatch.setattr(optimizers, "apply", lambda *a, lr, **more: apply(*a, lr=lr * wrong, **more))
    if wrong == 1:
        parity = export_bundle(*large(16), tmp_path / "bundle").manifest.parity
        assert parity["torch_eager"].weights <= LIMIT
    else:
        with pytest.raises(ParityError, match="off by"):
            export_bundle(*large(16), tmp_path / "bundle")


@pytest.mark.parametrize("factor", [pytest.param(100, marks=pytest.mark.matrix), 300])
def test_a_large_weight_that_is_never_trained_is_found_in_smaller_steps(factor: float, tmp_path: Path) -> None:
    """Its whole move is less than a share of its size."""
    torch.manual_seed(0)
    layers = (nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    model = nn.Sequential(*layers)
    layers[0].weight.data *= factor
    wanted = replace(target("torch_eager"), target=Input((3,), "float32"), loss="mse")
    export_bundle(model, wanted, tmp_path / "bundle")
    with pytest.MonkeyPatch.context() as patch:
        run = Programs.step

        def without(self: Programs, given: Given) -> float:
            held = self.tensors["0.weight"].copy()
            loss = run(self, given)
            self.put({**self.tensors, "0.weight": held})
            return loss

        patch.setattr(Programs, "step", without)
        with pytest.raises(ParityError, match=r"'0\.weight'"):
            export_bundle(model, wanted, tmp_path / "wrong")


def test_a_draw_that_strays_beside_one_that_diverges_asks_for_smaller_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In smaller steps a wrong program strays, too, and a right one that strayed by rounding does not."""
    sizes: list[float] = []
    within = parity._within_limits

    def first_step_size_fails(proof: parity._Proof) -> Parity:
        sizes.append(proof.lr)
        if proof.lr == sizes[0]:
            raise parity._DivergedError if proof.draw == 1 else DifferenceError
        return within(proof)

    monkeypatch.setattr(parity, "_within_limits", first_step_size_fails)
    bundle = edge_fl.export(nn.Linear(4, 3), torch.zeros(2, 4), output=tmp_path / "bundle")
    assert bundle.manifest.parity["onnx"].weights < LIMIT
    assert [size / sizes[0] for size in sizes] == pytest.approx([1, 1, 1, 0.1])


def test_a_model_that_always_diverges_is_refused_as_that(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=r"diverges on made-up samples, with a step size of 1e-05, too"):
        export_bundle(*large(1000), tmp_path / "bundle")


@pytest.mark.parametrize(
    "wrong", [None, 0.0, *(pytest.param(wrong, marks=pytest.mark.matrix) for wrong in (-1.0, 1.2))]
)
def test_where_torchs_float32_strays_limits_are_wider_but_no_wrong_step_passes(
    wrong: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bias before BatchNorm has no gradient, and Adam moves it by whatever rounding leaves."""
    torch.manual_seed(0)
    normalised = (nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU())
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), *normalised, nn.Linear(24, 3))
    wanted = replace(target("torch_eager"), optimizer=Optimizer(name="adam"))
    monkeypatch.setattr("exporter.parity.ADAM_LIMIT", 1e-5)  # as far from float32 as 1e-3 is in a deep network
    if wrong is None:
        assert export_bundle(model, wanted, tmp_path / "bundle").manifest.parity["torch_eager"].weights > 1e-5
        return
    apply = optimizers.apply
    monkeypatch.setattr(optimizers, "apply", lambda *a, lr, **more: apply(*a, lr=lr * wrong, **more))
    with pytest.raises(ParityError, match="off by"):
        export_bundle(model, wanted, tmp_path / "bundle")


def test_numbers_that_forward_writes_down_and_gradients_written_in_place_compile(tmp_path: Path) -> None:
    """torch's decomposition of SiLU's gradient writes in place."""

    class Weighted(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = super().forward(x * torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 1.0]))
            return result

    torch.manual_seed(0)
    model = Weighted(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 3))

    bundle = export_bundle(model, target("executorch"), tmp_path / "bundle")

    assert bundle.manifest.parity["executorch"].weights <= LIMIT


@pytest.mark.parametrize("activation", [nn.SiLU, nn.Mish])
def test_gradients_written_in_place_are_not_shared(tmp_path: Path, activation: type[nn.Module]) -> None:
    """Of two activations of one shape both gradients begin with the same buffer of ones."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.activation = activation()

        def forward(self, x: Tensor) -> Tensor:
            y = self.activation(self.first(x))
            result: Tensor = self.out(y + self.activation(self.second(y)))
            return result

    torch.manual_seed(0)
    bundle = export_bundle(Twice(), target("executorch"), tmp_path / "bundle")
    assert bundle.manifest.parity["executorch"].weights <= LIMIT


def test_a_model_that_mixes_the_samples_of_a_batch_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="influence one another"):
        export_bundle(models.BatchMixing(), target("onnx"), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("widths", [pytest.param((1000, 62), marks=pytest.mark.matrix), (1,)])
def test_a_width_at_which_dropout_leaves_no_unit_is_there_for_first_units(
    widths: tuple[int, ...], tmp_path: Path
) -> None:
    """HeteroFL's level e keeps one of 8 units, where dropout of 0.938 rounds to none: that has no program."""
    bundle = export_bundle(models.Residual(), target("onnx", "executorch", widths=widths), tmp_path / "bundle")

    assert all(proof.steps >= 5 for proof in bundle.manifest.parity.values())
    steps = [p.kept for p in bundle.manifest.programs["executorch"] if p.kind == "step"]
    assert steps == [Pattern.prefix(bundle.layout, width).counts for width in widths]
    assert min(steps[-1].values()) == max(steps[-1].values()) == 1


def test_dropout_that_leaves_no_unit_is_refused_and_the_same_share_of_first_units_is_not(tmp_path: Path) -> None:
    bundle = export_bundle(models.Residual(), target("onnx", widths=(1000, 62)), tmp_path / "bundle")

    def check(method: str, **parameters: object) -> None:
        sizes = {"rounds": 1, "clients_per_round": 1, "local_steps": 1, "batch": 6, "lr": 0.1, "seed": 0}
        run = RunConfig(run="run", method=method, parameters=parameters, **sizes)
        check_recipe(bundle, open_recipe(method, parameters), run)

    check("heterofl", levels=["e"])
    for method in ("feddrop", "fedbiad", "fedmp", "afd"):
        with pytest.raises(ConfigError, match=f"'{method}' would keep no unit of block 'stem'"):
            check(method, dropout=[938])
    with pytest.raises(ConfigError, match="'fedmp' would keep no unit of block 'stem'"):
        check("fedmp", dropout=[950], granularity=50, ratio="bandit")  # of its ratios the last ones


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        (target(), ConfigError, "No runtime"),
        (target("onnx", widths=(0,)), ConfigError, "Widths"),
        (target("onnx", batch=0), ConfigError, "at least one sample"),
        (target("tflite"), RuntimeMissingError, "no runtime 'tflite'"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(
    wanted: Target, error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        export_bundle(models.Residual(), wanted, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_one_flipped_bit_in_any_file_is_refused(digits_bundle: Bundle, tmp_path: Path) -> None:
    for name in digits_bundle.manifest.files:
        files = {file: digits_bundle.read(file) for file in digits_bundle.manifest.files}
        copy = Bundle.save(tmp_path / "copy", digits_bundle.manifest, files)
        damaged = bytearray(files[name])
        damaged[len(damaged) // 2] ^= 1
        (copy.root / name).write_bytes(damaged)
        with pytest.raises(BundleError, match="checksum") as caught:
            Bundle.load(copy.root)
        assert name in str(caught.value)


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sha256"])
def test_one_flipped_bit_in_the_manifest_or_its_seal_is_refused(
    digits_bundle: Bundle, tmp_path: Path, name: str
) -> None:
    files = {file: digits_bundle.read(file) for file in digits_bundle.manifest.files}
    path = Bundle.save(tmp_path / "copy", digits_bundle.manifest, files).root / name
    raw = path.read_bytes()
    for at in range(0, len(raw), 7):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(BundleError, match=name):
            Bundle.load(path.parent)


def test_a_model_without_units_has_every_variant(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    bundle = edge_fl.export(
        model, torch.zeros(2, 1, 8, 8), variants=["plain", "noise", "distil"], output=tmp_path / "b"
    )
    assert not bundle.layout.blocks
    assert bundle.manifest.parity["onnx"].weights < 1e-5
