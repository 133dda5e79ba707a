"""What every test shares."""

import pytest
from hypothesis import settings

from edge_fl.bundle import Bundle, Input

# A shared machine makes any deadline a matter of luck; pytest's own timeout catches what hangs.
settings.register_profile("edge-fl", deadline=None)
settings.load_profile("edge-fl")


@pytest.fixture(scope="session")
def digits_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The digits MLP in every runtime; exported once, as ExecuTorch's compiler takes its time."""
    import torch

    from exporter.export import Target, export_bundle
    from exporter.zoo import mlp

    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = Target(
        name="digits-mlp",
        dataset="digits",
        input=Input((1, 8, 8), "float32"),
        classes=10,
        runtimes=("onnx", "executorch", "torch_eager"),
        widths=(1000, 500),
    )
    return export_bundle(mlp.digits(), target, tmp_path_factory.mktemp("digits") / "bundle")
