"""Small operations that a stacked step does without, and views that it makes once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from device_sim.simulation.lasting_inputs import take_out_views
from device_sim.simulation.stacked_program import StackedStep
from device_sim.simulation.step_rewriting import Rewriting
from edge_fl.core.bundle import NEW

INPUTS = ("tensor.w", "tensor.b", "x", "lr", "scale")
OUTPUTS = ("loss", f"{NEW}tensor.w", f"{NEW}tensor.b")


def step(w: Tensor, b: Tensor, x: Tensor, lr: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """One of a linear layer of two clients: the mean of squares, as autograd writes its gradient."""
    out = (x @ w.transpose(1, 2) + b.unsqueeze(1)) * scale
    total = (out * out).sum([1, 2])
    share = torch.ones_like(total) / x[:, 0, 0].abs().add(1.0)
    gradient = share.view(2, 1).expand(2, 3) * b
    bias = out.sum([1], True).view(2, 3) + gradient
    return total, w - lr * (out.transpose(1, 2) @ x), b - lr * bias


def example() -> dict[str, Tensor]:
    torch.manual_seed(3)
    drawn = {"tensor.w": torch.randn(2, 3, 4), "tensor.b": torch.randn(2, 3), "x": torch.randn(2, 5, 4)}
    return {**drawn, "lr": torch.tensor(0.1), "scale": torch.tensor(1.0)}


def rewritten(inputs: dict[str, Tensor]) -> torch.fx.GraphModule:
    module = make_fx(step)(*inputs.values())
    Rewriting(module.graph, INPUTS, lr=0.1, scale=1.0).run(OUTPUTS)
    module.recompile()
    return module


def test_what_is_left_of_a_step() -> None:
    graph = rewritten(example()).graph
    made = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert not {"aten.ones_like.default", "aten.expand.default", "aten.div.Tensor"} & {*made}
    assert made.count("aten.reciprocal.default") == 1
    sums = [node for node in graph.nodes if str(node.target) == "aten.sum.dim_IntList"]
    assert all(len(node.args) == 2 for node in sums)  # none keeps an axis for a view to leave out


def test_a_bound_step_computes_the_same_at_every_call() -> None:
    """Views of what lasts see what later steps wrote; the others are taken anew."""
    inputs = example()
    expected = {name: tensor.clone() for name, tensor in inputs.items()}
    lasting = {name: tensor for name, tensor in inputs.items() if name != "x"}
    bound = StackedStep(rewritten(inputs), INPUTS, lasting=set(lasting), single=()).bound(lasting)
    for turn in range(3):
        x = inputs["x"] + turn
        loss, w, b = step(expected["tensor.w"], expected["tensor.b"], x, expected["lr"], expected["scale"])
        assert torch.allclose(bound({"x": x}), loss, rtol=1e-5)
        expected |= {"tensor.w": w, "tensor.b": b}
        assert torch.allclose(inputs["tensor.w"], w, atol=1e-6)
        assert torch.allclose(inputs["tensor.b"], b, atol=1e-6)


def test_views_of_inputs_that_last_are_taken_out_and_no_others() -> None:
    module = rewritten(example())
    given = {node.target: node for node in module.graph.nodes if node.op == "placeholder"}
    names = dict(zip(INPUTS, given.values(), strict=True))
    views = take_out_views(module.graph, {names["tensor.w"], names["tensor.b"]})
    module.graph.lint()
    made = [str(node.target) for node in views.nodes if node.op == "call_function"]
    assert sorted(made) == ["aten.transpose.int", "aten.unsqueeze.default"]
    assert any(str(node.target) == "aten.transpose.int" for node in module.graph.nodes)  # of what a step computes


NEAR_MISSES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "a product with a smaller factor": (
        lambda w, b, x: (b.unsqueeze(2).expand(2, 3, 4) * b[0, 0]).sum([1, 2]),
        "expand",
    ),
    "an expansion of two uses": (lambda w, b, x: used_twice(b.unsqueeze(2).expand(2, 3, 4), w), "expand"),
    "the square of an expansion": (lambda w, b, x: squared(b.unsqueeze(2).expand(2, 3, 4)).sum([1, 2]), "expand"),
    "another dtype": (lambda w, b, x: (b.double().unsqueeze(2).expand(2, 3, 4) * w).sum([1, 2]).float(), "expand"),
    "ones of a smaller tensor": (lambda w, b, x: (torch.ones_like(b[:, :1]) / b).sum([1]), "ones_like"),
    "ones of another order in memory": (
        lambda w, b, x: (torch.ones_like(b.t()) / b.t().contiguous()).t().reshape(2, 3).sum([1]),
        "ones_like",
    ),
    "a sum that is viewed otherwise": (lambda w, b, x: w.sum([1], True).view(2, 2, 2).sum([1, 2]), "sum"),
    "a sum in another dtype": (lambda w, b, x: b.sum([1], True, dtype=torch.float64).view(2).float(), "sum"),
}


def squared(tensor: Tensor) -> Tensor:
    return tensor * tensor


def used_twice(tensor: Tensor, factor: Tensor) -> Tensor:
    return (tensor * factor).sum([1, 2]) + tensor.sum([1, 2])


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_alike_is_left_as_it_is(name: str) -> None:
    loss, operation = NEAR_MISSES[name]

    def near(w: Tensor, b: Tensor, x: Tensor, lr: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return loss(w, b, x) * scale, w - lr * w, b - lr * b

    inputs = example()
    expected = near(**{name.removeprefix("tensor."): tensor.clone() for name, tensor in inputs.items()})[0]
    module = make_fx(near)(*inputs.values())
    before = [str(node.target) for node in module.graph.nodes]
    Rewriting(module.graph, INPUTS, lr=0.1, scale=1.0).run(OUTPUTS)
    module.recompile()
    after = [str(node.target) for node in module.graph.nodes]
    kept = [target for target in before if f".{operation}." in target]
    assert kept
    assert [target for target in after if f".{operation}." in target] == kept
    found = module(*inputs.values())
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_a_stack_of_one_client_needs_no_axis_for_it() -> None:
    def step(w: Tensor, b: Tensor, x: Tensor, lr: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        out = (x @ w.t() + b) * scale
        return (out * out).sum(), w - lr * (out.t() @ x), b - lr * out.sum([0], True).view(3)

    whole = {name: tensor[:1] if tensor.dim() else tensor for name, tensor in example().items()}
    alone = {name: tensor[0] if tensor.dim() else tensor for name, tensor in whole.items()}
    expected = step(*(tensor.clone() for tensor in alone.values()))
    module = make_fx(step)(*alone.values())
    Rewriting(module.graph, INPUTS, lr=0.1, scale=1.0).run(OUTPUTS)
    lasting = {name: tensor for name, tensor in whole.items() if name != "x"}
    bound = StackedStep(module, INPUTS, lasting=set(lasting), single={"tensor.w", "tensor.b", "x"}).bound(lasting)
    assert torch.allclose(bound({"x": whole["x"]}), expected[0].reshape(1), rtol=1e-5)
    assert torch.allclose(whole["tensor.w"][0], expected[1], atol=1e-6)
    assert torch.allclose(whole["tensor.b"][0], expected[2], atol=1e-6)
