"""Small convolutions and their poolings on a CPU as matrix products and slices, for stacks of clients.

What a batch of small images unfolds to stays in the caches, and its products take less time than oneDNN's convolutions.
Those of many clients are one batched product, where convolutions of many clients are groups, which are slow. Between
two layers batches lie as ``[C, H, W, N]`` in memory, whatever the order of their axes: copies are then of long runs of
numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import functional

__all__ = ["SMALL", "Unfolding", "unfoldings", "write_as_products"]

SMALL = 1 << 20
"""Numbers that outputs of a small convolution see at the most, each counted as often as it is seen: 4 MB. Where its
kernel slides row by row, a KH-th of them is in memory."""

_aten = torch.ops.aten
_NORMALISING = ("batch_norm", "group_norm", "layer_norm")
_IMAGES, _AXES = 4, 2  # axes of a batch of them, and of one that a kernel slides along
_Unfolded = dict[tuple[Any, ...], Node]


@dataclass(frozen=True)
class Unfolding:
    """What a convolution's outputs see of its inputs, as far as no width changes it.

    Each of an image's ``places`` of outputs sees as many numbers as a row of the step's input ``weight`` has; empty
    where the weight is none of its inputs.
    """

    weight: str
    places: int

    def size(self, shapes: Mapping[str, Sequence[int]], batch: int) -> float:
        """How many numbers, where inputs have these shapes by name; infinitely many where the weight's is not there."""
        shape = shapes.get(self.weight)
        return math.inf if shape is None else batch * self.places * math.prod(shape[1:])


def unfoldings(graph: Graph, inputs: Sequence[str]) -> list[Unfolding]:
    """Of each convolution of a train step that takes these ``inputs``, in the order of its placeholders."""
    names = dict(zip(graph.find_nodes(op="placeholder"), inputs, strict=True))
    return [
        Unfolding(names.get(node.args[1], ""), math.prod(map(int, node.meta["val"].shape[2:])))
        for node in graph.nodes
        if node.target is _aten.convolution.default
    ]


def write_as_products(graph: Graph) -> bool:
    """Rewrite a train step's convolutions and poolings in place; False where the graph is left as it is.

    It is left where a convolution is none of whole images, and where something normalises, whose kernels are slow on
    that order of axes. A convolution whose inputs unfold to more than is small stays one.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    convolutions = [node for node in calls if node.target is _aten.convolution.default]
    if not convolutions or not all(map(_is_plain, convolutions)):
        return False
    if any(name in str(node.target) for node in calls for name in _NORMALISING):
        return False
    for node in calls:
        if node.target is _aten.max_pool2d_with_indices.default:
            _rectify_later(graph, node)
    unfolded: _Unfolded = {}
    for node in calls:
        if node.target is _aten.convolution.default:
            x, weight, _, *about = node.args
            _turn(node, _convolved, _unfolding(graph, unfolded, node, (x, weight, *about)))
        elif node.target is _aten.convolution_backward.default:
            _, x, weight, _, *about, _ = node.args
            _turn(node, _convolution_gradients, _unfolding(graph, unfolded, node, (x, weight, *about)))
        elif node.target is _aten.max_pool2d_with_indices.default and _rank(node.args[0]) == _IMAGES:
            node.target = _pooled
        elif node.target is _aten.max_pool2d_with_indices_backward.default and _rank(node.args[1]) == _IMAGES:
            node.target = _pooled_gradient
    graph.lint()
    return True


def _rectify_later(graph: Graph, pooling: Node) -> None:
    """Pool before a ReLU in place of after it, which gives the same numbers and gradients, and rectifies fewer."""
    relu = pooling.args[0]
    if not isinstance(relu, Node) or relu.target is not _aten.relu.default:
        return
    back = [user for user in relu.users if user.target is _aten.max_pool2d_with_indices_backward.default]
    through = [user for user in relu.users if user.target is _aten.threshold_backward.default]
    if len(relu.users) != 3 or len(back) != 1 or len(through) != 1 or through[0].args[0] is not back[0]:
        return
    (largest,) = (user for user in pooling.users if user.args[1] == 0)
    with graph.inserting_after(largest):
        rectified = graph.call_function(_aten.relu.default, (largest,))
    rectified.meta = largest.meta
    largest.replace_all_uses_with(rectified, lambda user: user is not rectified)
    with graph.inserting_before(back[0]):
        gradient = graph.call_function(_aten.threshold_backward.default, (back[0].args[0], rectified, 0))
    gradient.meta = largest.meta
    through[0].replace_all_uses_with(back[0])
    graph.erase_node(through[0])
    pooling.update_arg(0, relu.args[0])
    back[0].update_arg(0, gradient)
    back[0].update_arg(1, relu.args[0])
    graph.erase_node(relu)


def _unfolding(graph: Graph, unfolded: _Unfolded, user: Node, args: tuple[Any, ...]) -> Node:
    """The node that unfolds for ``user``: one for a forward pass and its gradients, where they have the same inputs."""
    place = (*args[:2], str(args[2:]))
    if place not in unfolded:
        with graph.inserting_before(user):
            unfolded[place] = graph.call_function(_unfolded, args)
    return unfolded[place]


def _turn(node: Node, function: Any, unfolded: Node) -> None:
    node.target, node.args = function, (unfolded, *node.args)


def _is_plain(convolution: Node) -> bool:
    """Whether a convolution is one of images, without groups and gaps, whose settings are given for both axes."""
    _x, _weight, _bias, stride, padding, dilation, transposed, _, groups = convolution.args
    pairs = all(len(setting) == _AXES for setting in (stride, padding, dilation))  # type: ignore[arg-type]
    alike = set(dilation) == {1} and not transposed and groups == 1  # type: ignore[arg-type]
    return bool(pairs and alike) and _rank(convolution) == _IMAGES


def _rank(node: Any) -> int:
    return len(node.meta["val"].shape)


def _is_small(x: Tensor, weight: Tensor, about: Sequence[Any]) -> bool:
    """Whether a convolution is written as products; ``about`` it are its stride and what follows."""
    size: int = x.shape[0] * math.prod(_outputs(x, weight, about)) * weight[0].numel()
    return size <= SMALL


def _unfolded(x: Tensor, weight: Tensor, *about: Any) -> Tensor:
    """What outputs see through the kernel rows that are multiplied at once, ``[C R KW, H" W' N]``.

    H" are the rows where these may lie. Of a convolution that stays one, ``x``.
    """
    if not _is_small(x, weight, about):
        return x
    stride, (height, width), *_ = about
    lying = x.permute(1, 2, 3, 0).contiguous()
    if height or width:
        lying = functional.pad(lying, (0, 0, width, width, height, height))
    rows = _rows_at_once(weight, about)
    seen = lying.unfold(1, rows, stride[0]).unfold(2, weight.shape[3], stride[1])
    return seen.permute(0, 4, 5, 1, 2, 3).reshape(weight.shape[1] * rows * weight.shape[3], -1)


def _rows_at_once(weight: Tensor, about: Sequence[Any]) -> int:
    """R, the kernel rows that are multiplied at once: one where the kernel slides row by row, else all.

    With one, KH products share what unfolds along the columns alone, a KH-th of it all.
    """
    stride, *_ = about
    return 1 if stride[0] == 1 else weight.shape[2]


def _products(unfolded: Tensor, x: Tensor, weight: Tensor, about: Sequence[Any]) -> list[tuple[Tensor, slice]]:
    """By product its part of the weights, ``[O, C R KW]``, and where in ``unfolded`` it finds its inputs."""
    rows, (down, along) = _rows_at_once(weight, about), _outputs(x, weight, about)
    run = along * x.shape[0]
    return [
        (weight[:, :, row : row + rows].reshape(weight.shape[0], -1), slice(row * run, (row + down) * run))
        for row in range(0, weight.shape[2], rows)
    ]


def _convolved(unfolded: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, *about: Any) -> Tensor:
    if not _is_small(x, weight, about):
        return _aten.convolution.default(x, weight, bias, *about)  # type: ignore[no-any-return]
    (part, place), *others = _products(unfolded, x, weight, about)
    product = part @ unfolded[:, place]
    if bias is not None:
        product = bias.unsqueeze(1) + product
    for part, place in others:
        product.add_(part @ unfolded[:, place])
    lying = product.reshape(weight.shape[0], *_outputs(x, weight, about), x.shape[0])
    return lying.permute(3, 0, 1, 2)


def _convolution_gradients(
    unfolded: Tensor, gradient: Tensor, x: Tensor, weight: Tensor, *about: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of the inputs, the weights and the bias, as far as they are asked for."""
    _bias_sizes, *about_it, (of_inputs, of_weights, of_bias) = about
    if not _is_small(x, weight, about_it):
        return _aten.convolution_backward.default(gradient, x, weight, *about)  # type: ignore[no-any-return]
    lying = gradient.permute(1, 2, 3, 0).reshape(weight.shape[0], -1)
    return (
        _folded(unfolded, lying, x, weight, about_it) if of_inputs else None,
        _of_weights(unfolded, lying, x, weight, about_it) if of_weights else None,
        lying.sum(1) if of_bias else None,
    )


def _of_weights(unfolded: Tensor, lying: Tensor, x: Tensor, weight: Tensor, about: Sequence[Any]) -> Tensor:
    """The weights' gradient, where ``lying`` ``[O, H' W' N]`` is that of the outputs."""
    parts = [lying @ unfolded[:, place].T for _, place in _products(unfolded, x, weight, about)]
    if len(parts) == 1:
        return parts[0].reshape(weight.shape)
    outputs, channels, _, columns = weight.shape
    return torch.stack([part.reshape(outputs, channels, columns) for part in parts], dim=2)


def _folded(unfolded: Tensor, lying: Tensor, x: Tensor, weight: Tensor, about: Sequence[Any]) -> Tensor:
    """The inputs' gradient, where ``lying`` ``[O, H' W' N]`` is that of the outputs.

    It is the sum of what each output saw of an input: of products, then along rows, then along columns.
    """
    products = _products(unfolded, x, weight, about)
    if len(products) == 1:
        seen = products[0][0].T @ lying
    else:
        seen = lying.new_zeros(unfolded.shape)
        for part, place in products:
            seen[:, place].add_(part.T @ lying)
    stride, padding, *_ = about
    (count, channels, height, width), columns = x.shape, weight.shape[3]
    rows, along = _rows_at_once(weight, about), _outputs(x, weight, about)[1]
    seen = seen.reshape(channels, rows, columns, -1, along, count)
    wide = seen.new_zeros(channels, rows, seen.shape[3], width + 2 * padding[1], count)
    for column in range(columns):
        _every(wide, 3, column, stride[1], along).add_(seen[:, :, column])
    if rows == stride[0] == 1:
        high = wide[:, 0]
    else:
        high = seen.new_zeros(channels, height + 2 * padding[0], width + 2 * padding[1], count)
        for row in range(rows):
            _every(high, 1, row, stride[0], seen.shape[3]).add_(wide[:, row])
    inner = high[:, padding[0] : padding[0] + height, padding[1] : padding[1] + width]
    return inner.permute(3, 0, 1, 2)


def _pooled(x: Tensor, *about: Any) -> tuple[Tensor, Tensor]:
    """The largest of each window, and where it is.

    With images for channels, ``[C, H, W, N]`` is torch's *channels last*, for which pooling has its quick kernels.
    """
    largest, places = _aten.max_pool2d_with_indices.default(x.transpose(0, 1), *about)
    return largest.transpose(0, 1), places.transpose(0, 1)


def _pooled_gradient(gradient: Tensor, x: Tensor, *about: Any) -> Tensor:
    *about_it, places = about
    found = _aten.max_pool2d_with_indices_backward.default(
        gradient.transpose(0, 1), x.transpose(0, 1), *about_it, places.transpose(0, 1)
    )
    return found.transpose(0, 1)  # type: ignore[no-any-return]


def _every(tensor: Tensor, axis: int, start: int, step: int, count: int) -> Tensor:
    """So many neighbours of an axis, every so many steps."""
    taken = (slice(None),) * axis
    return tensor[(*taken, slice(start, start + step * (count - 1) + 1, step))]


def _outputs(x: Tensor, weight: Tensor, about: Sequence[Any]) -> tuple[int, int]:
    """H' and W'."""
    stride, padding, *_ = about
    down, along = (
        (size + 2 * pad - kernel) // step + 1
        for size, kernel, step, pad in zip(x.shape[2:], weight.shape[2:], stride, padding, strict=True)
    )
    return down, along
