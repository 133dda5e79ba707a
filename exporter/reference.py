"""What train steps must compute, from torch's autograd and torch.optim on the full model in double precision.

It shares nothing with the exported programs but the user's own module: dropped rows are multiplied by zero, and
nothing here knows of compact execution, padding or the traced step.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Optimizer
from edge_fl.core.errors import EdgeFLError, ModelError, UnsupportedModelError
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.width_statistics import row_at
from exporter.double_precision import double_precision
from exporter.dropout_calls import Undropped
from exporter.frozen import is_frozen
from exporter.own_outputs import Outputs
from exporter.recurrent.scaling import dropping
from exporter.reference_dropout import DrawnMasks
from exporter.sentence import first_line
from exporter.source import Source

__all__ = ["Given", "Reference"]

_LEAST_VARIANCE = 1e-8  # added to that of outputs, as its root has no gradient at 0
_ROUNDING = 1e-4  # of the largest gradient: a thousand times single precision's own


@dataclass(frozen=True)
class Given:
    """What one step is given: ``extra`` are full-size arrays by the names of the variant's inputs, ``width``
    (thousandths) says whose statistics BatchNorm brings up to date where it has them for each.
    """

    pattern: Pattern
    batch: Batch
    lr: float
    scale: float
    variant: str = "plain"
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    width: int = 1000


class Reference:
    """A model in training, step by step.

    Parameters
    ----------
    source
        The model and how it is trained.
    weights
        The full tensors that training starts from.
    rates
        Of variational dropout, the full ``log_alpha.NAME`` that training starts from.
    dtype
        ``torch.float32`` shows what rounding alone does to a model.
    """

    def __init__(
        self,
        source: Source,
        weights: Weights,
        rates: Weights | None = None,
        *,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._source, self._dtype = source, dtype
        self._module = copy.deepcopy(source.original).to(dtype)
        self._statistics = {t.name for t in source.layout.statistics}
        self._tensors = {name: torch.tensor(array, dtype=dtype) for name, array in weights.items()}
        self._rates = {n: torch.tensor(array, dtype=dtype) for n, array in (rates or {}).items()}
        self._rounded: dict[str, Tensor] = {}
        trained = [tensor.requires_grad_() for tensor in self._trained().values()]
        self._optimizer = _optimizer(source.optimizer, trained)

    @property
    def tensors(self) -> dict[str, NDArray[Any]]:
        """The full tensors now, ``log_alpha.NAME`` among them."""
        return {name: tensor.detach().numpy() for name, tensor in (self._tensors | self._rates).items()}

    def put(self, tensors: Weights) -> None:
        """Take the values of ``tensors``; the optimiser's other state stays."""
        for name, tensor in (self._tensors | self._rates).items():
            tensor.data.copy_(torch.from_numpy(tensors[name]))

    def moved_by_rounding(self, name: str) -> NDArray[np.bool_]:
        """Which entries Adam has moved, in any step, by gradients that rounding could have made.

        It divides them by their own size, so that single and double precision agree on nothing there. A bias or a
        factor before BatchNorm has only such gradients.
        """
        return self._rounded[name].numpy()

    def _note_rounding(self, pattern: Pattern) -> None:
        if self._source.optimizer.name != "adam":
            return
        squares = {n: self._optimizer.state[t]["exp_avg_sq"] for n, t in self._trained().items()}
        least = _ROUNDING**2 * max(float(square.max()) for square in squares.values())
        units = Selection.of(pattern, "units")
        for name, square in squares.items():
            kept = units.index(pattern.layout.tensor(_layout_name(name)))
            noted = self._rounded.setdefault(name, torch.zeros(square.shape, dtype=torch.bool))
            noted[kept] |= square[kept] < least

    def _trained(self) -> dict[str, Tensor]:
        weights = {name: tensor for name, tensor in self._tensors.items() if name not in self._statistics}
        return weights | self._rates

    def step(self, given: Given) -> float:
        """One step of the optimiser; gives the loss before it. Samples of weight 0 are left out."""
        for group in self._optimizer.param_groups:
            group["lr"] = given.lr
        before = self._copies()
        self._optimizer.zero_grad()
        statistics = {name: self._tensors[name].clone() for name in self._statistics}
        minimised, loss = self._objective(given, statistics)
        try:
            minimised.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # such as a layer that writes over what another's gradient needs
            raise ModelError(
                f"torch itself cannot train the model ({first_line(error)}): leave out inplace=True where a gradient "
                "needs what was there."
            ) from error
        for tensor in self._optimizer.param_groups[0]["params"]:
            tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        if self._source.optimizer.clip is not None:
            nn.utils.clip_grad_norm_(self._optimizer.param_groups[0]["params"], self._source.optimizer.clip)
        self._optimizer.step()
        if self._source.tracked:
            self._tensors.update(statistics)
        self._freeze(given.pattern, before)
        self._note_rounding(given.pattern)
        return loss.item()

    def evaluate(self, batch: Batch, width: int = 1000) -> tuple[float, NDArray[Any]]:
        """The mean loss over the samples of weight above 0, and the outputs ``[B, ...]`` of all.

        ``width`` is as in :class:`Given`.
        """
        statistics = {name: self._tensors[name] for name in self._statistics}
        tensors = {**self._tensors, **self._buffers(statistics, width)}
        with torch.no_grad():
            ones = [torch.ones(self._source.classes) for _ in self._source.loss.inputs]
            with self._precision():
                self._module.eval()
                outputs = self._called(tensors, self._input(batch.x))
                losses = self._source.loss.per_sample(outputs, self._input(batch.y), *ones)
        self._module.train()
        return float(losses[torch.from_numpy(batch.weight > 0)].mean()), self._source.predictions(outputs).numpy()

    def _buffers(self, statistics: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
        """The running buffers of a width, or the only ones: what is written there is written in ``statistics``."""
        widths = self._source.statistic_widths
        return {name: tensor[row_at(widths, width)] if widths else tensor for name, tensor in statistics.items()}

    def _students(self, statistics: Mapping[str, Tensor], given: Given) -> dict[str, Tensor]:
        """Those of the student's width, or copies of the teacher's that nobody asks for."""
        widths = self._source.statistic_widths
        if not widths:
            return {name: tensor.clone() for name, tensor in statistics.items()}
        return self._buffers(statistics, widths[int(given.extra["student_width"].argmax())])

    def _objective(self, given: Given, statistics: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What is minimised, and the loss to report; BatchNorm writes into ``statistics``."""
        noise = {
            name: torch.from_numpy(given.extra[f"noise.{name}"]).to(self._dtype)
            for name in self._tensors
            if f"noise.{name}" in given.extra
        }
        rows = _row_factors(given.pattern, self._dtype)
        effective = {n: (t + noise.get(n, 0)) * rows[n] for n, t in self._tensors.items()}
        outputs = self._outputs({**effective, **self._buffers(statistics, given.width)}, given)
        loss = self._mean_loss(outputs, given)
        if given.variant == "vardrop":
            return loss + float(given.extra["kl"]) * self._divergence(given.pattern), loss
        if given.variant != "distil":
            return loss, loss
        blocks = given.pattern.layout.blocks
        mask = np.concatenate([np.zeros(0), *(given.extra[f"student.{block.name}"] for block in blocks)])
        narrow = _row_factors(Pattern(given.pattern.layout, mask > 0), self._dtype)
        apart = self._students(statistics, given)
        slim = self._outputs({**{n: t * narrow[n] for n, t in self._tensors.items()}, **apart}, given)
        alpha, temperature, forward = (float(given.extra[n]) for n in ("alpha", "temperature", "forward"))
        guesses = self._source.predictions(outputs), self._source.predictions(slim)
        wide, thin = (functional.softmax(each / temperature, dim=-1).flatten(0, -2) for each in guesses)
        target, guess = (wide, thin) if forward else (thin, wide)
        distance = functional.kl_div(guess.log(), target, reduction="batchmean")
        hard = self._mean_loss(slim, given)
        return loss + (1 - alpha) * hard + alpha * temperature**2 * distance, hard

    def _divergence(self, pattern: Pattern) -> Tensor:
        """Variational dropout's eq. (3), of the kept entries."""
        units, total = Selection.of(pattern, "units"), torch.zeros((), dtype=self._dtype)
        for name, rate in self._rates.items():
            kept = rate[units.index(pattern.layout.tensor(_layout_name(name)))]
            total = total - (0.64 * torch.sigmoid(1.87 + 1.49 * kept)).sum()
            total = total + (0.5 * torch.log(1 + 1 / kept.exp())).sum()
        return total

    def _noise(self, layer: str, real: NDArray[np.bool_], given: Given) -> Any:
        """A hook that adds noise of the outputs' variance under weights of variance alpha theta^2."""
        noise = torch.from_numpy(given.extra[f"output_noise.{layer}.weight"][real]).to(self._dtype)
        alpha = self._rates[f"log_alpha.{layer}.weight"].exp()

        def add(
            module: nn.Linear | nn.Conv2d, inputs: tuple[Tensor, ...], named: dict[str, Tensor], outputs: Tensor
        ) -> Tensor:
            x = inputs[0] if inputs else named["input"]
            noiseless = copy.copy(module)
            noiseless._parameters = {"weight": alpha * module.weight**2, "bias": None}  # type: ignore[dict-item]
            noiseless._forward_hooks = OrderedDict()
            variance: Tensor = noiseless(x**2) + _LEAST_VARIANCE
            if len(variance) != len(noise):  # of an adapter whose weight is read, and whose layers get no samples
                raise UnsupportedModelError(
                    f"'{layer}' beside torch's attention takes no variational dropout: leave vardrop or the "
                    "adapter out."
                )
            return outputs + noise * variance.sqrt()

        return add

    def _outputs(self, tensors: dict[str, Tensor], given: Given) -> Outputs:
        for module in self._module.modules():
            still = self._source.batch_norm == "frozen" or is_frozen(module)
            if still and isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.eval()
        real = given.batch.weight > 0
        rated = [_layout_name(name).rpartition(".")[0] for name in self._rates]
        hooks = [
            self._module.get_submodule(n).register_forward_hook(self._noise(n, real, given), with_kwargs=True)
            for n in rated
        ]
        for name in self._source.scaled:
            module = self._module.get_submodule(name)
            if isinstance(module, nn.RNNBase | nn.RNNCellBase):
                drops = dropping(self._module, name, self._source.layout)
                factors = tuple(given.scale if dropped else 1.0 for dropped in drops)
                hooks.append(module.register_forward_hook(_multiply_units(factors)))
                hooks.append(module.register_forward_pre_hook(_divide_units(factors), with_kwargs=True))
            else:
                hooks.append(module.register_forward_hook(_multiply(given.scale)))
        inner = {name: tensors[name] * given.scale for name in self._source.inner}
        x = self._input(given.batch.x[real])
        with self._masks(real, given) as masks, self._precision():
            outputs = self._called({**tensors, **inner}, x)
        if isinstance(masks, DrawnMasks):
            masks.require_all_drawn()
        for hook in hooks:
            hook.remove()
        return outputs

    def _called(self, tensors: dict[str, Tensor], x: Tensor) -> Outputs:
        try:
            outputs: Outputs = functional_call(self._module, tensors, (x,))
        except EdgeFLError:
            raise
        except Exception as error:  # the forward pass is the user's code, and ran in single precision before
            raise UnsupportedModelError(
                f"The model's forward does not run in double precision, in which its programs are proven "
                f"({first_line(error)}): leave out what asks for float32."
            ) from error
        return outputs

    def _precision(self) -> AbstractContextManager[None]:
        return double_precision() if self._dtype == torch.float64 else nullcontext()

    def _masks(self, real: NDArray[np.bool_], given: Given) -> AbstractContextManager[object]:
        """What the model's own dropout draws."""
        places = self._source.dropout
        if places is None:
            return Undropped()
        masks = {
            p.dropout.input: torch.from_numpy(given.extra[p.dropout.input][real]) for p in places if p is not None
        }
        return DrawnMasks(places, masks)

    def _mean_loss(self, outputs: Outputs, given: Given) -> Tensor:
        y = self._input(given.batch.y[given.batch.weight > 0])
        more = [torch.from_numpy(given.extra[name]).to(self._dtype) for name in self._source.loss.inputs]
        with self._precision():
            return self._source.loss.per_sample(outputs, y, *more).mean()

    def _input(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _copies(self) -> list[tuple[str, Tensor, Tensor]]:
        """Every full tensor, parameters' optimiser states included, by the layout's name, and a copy of it."""
        held = list((self._tensors | self._rates).items())
        for name, tensor in list(held):
            state = self._optimizer.state.get(tensor, {})
            held += [(name, s) for s in state.values() if isinstance(s, Tensor) and s.shape == tensor.shape]
        return [(name, tensor, tensor.detach().clone()) for name, tensor in held]

    def _freeze(self, pattern: Pattern, before: list[tuple[str, Tensor, Tensor]]) -> None:
        """Undo what the step did to entries that it does not keep, and to what it remembers of them."""
        units = Selection.of(pattern, "units")
        old = {id(tensor): copied for _, tensor, copied in before}
        first = {name: copied for name, _, copied in reversed(before)}
        for name, tensor, _ in self._copies():
            dropped = np.ones(tensor.shape, dtype=np.bool_)
            dropped[units.index(pattern.layout.tensor(_layout_name(name)))] = False
            at = torch.from_numpy(dropped)
            was = old.get(id(tensor))
            if was is None:  # statistics are new tensors, and a state is zero before the first step
                was = first[name] if name in self._statistics else torch.zeros_like(tensor)
            with torch.no_grad():
                tensor[at] = was[at]


def _optimizer(optimizer: Optimizer, trained: list[Tensor]) -> torch.optim.Optimizer:
    decay = optimizer.weight_decay
    if optimizer.name == "adam":
        return torch.optim.Adam(trained, betas=optimizer.betas, eps=optimizer.eps, weight_decay=decay)
    return torch.optim.SGD(trained, lr=0.1, momentum=optimizer.momentum, weight_decay=decay)


def _multiply(scale: float) -> Callable[..., Tensor]:
    """A hook that multiplies what a layer gives."""
    return lambda _, __, outputs: outputs * scale


def _multiply_units(factors: tuple[float, ...]) -> Callable[..., Any]:
    """A hook that multiplies the units a recurrent module gives: outputs and the state h, not an LSTM's c.

    There is a factor for each layer and direction.
    """

    def multiply(module: nn.Module, _: tuple[Any, ...], given: Any) -> Any:
        if isinstance(module, nn.RNNCellBase):
            return _state_times(given, factors)
        outputs, last = given
        top = factors[-2:] if cast(nn.RNNBase, module).bidirectional else factors[-1:]
        parts = zip(outputs.chunk(len(top), -1), top, strict=True)
        return torch.cat([part * factor for part, factor in parts], -1), _state_times(last, factors)

    return multiply


def _divide_units(factors: tuple[float, ...]) -> Callable[..., Any]:
    """A hook that takes the factors out of the state h that a recurrent module is given."""

    def divide(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        state = named.get("hx", args[1] if len(args) > 1 else None)
        return None if state is None else (args[:1], {"hx": _state_times(state, [1 / f for f in factors])})

    return divide


def _state_times(state: Any, factors: Sequence[float]) -> Any:
    """The state h ``[layers, ..., H]``, or a cell's, times the factor of each layer; of a pair the first."""
    if isinstance(state, tuple):
        return (_state_times(state[0], factors), *state[1:])
    if len(factors) == 1:
        return state * factors[0]
    return torch.stack([layer * factor for layer, factor in zip(state, factors, strict=True)])


def _layout_name(name: str) -> str:
    return name.removeprefix("log_alpha.")


def _row_factors(pattern: Pattern, dtype: torch.dtype) -> dict[str, Tensor]:
    """0 where a tensor's row is dropped, 1 elsewhere."""
    rows = Selection.of(pattern, "rows")
    factors = {}
    for tensor in pattern.layout.tensors:
        factor = np.zeros(tensor.shape)
        factor[rows.index(tensor)] = 1.0
        factors[tensor.name] = torch.from_numpy(factor).to(dtype)
    return factors
