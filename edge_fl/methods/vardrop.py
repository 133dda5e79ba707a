"""Variational dropout (Du et al., *Efficient Federated Learning via Variational Dropout*): a dropout rate a weight.

Of each weight of a Linear or Conv2d layer a device trains theta and log alpha (eq. (2)), with noise on the layer's
outputs (``exporter/steps/vardrop.py``) and the divergence of eq. (3), whose weight is 1 / N for its own N samples
(eq. (1) is of one device's data, section 4). Theta is the federated model; log alpha stays on the device, in its state
(the paper's variant, which its experiments use: alpha is optimised locally and neither uploaded nor downloaded).
Alpha shared, Algorithm 1 to the letter, is not there: models and updates would have to carry tensors that no layout
names, and appendix A finds the same accuracy for twice the traffic.

What leaves a device are the differences of the entries with log alpha <= T (eq. (4)), by the alpha that they were
trained with, and which entries these are: frames encoded as ``sparse``. Biases and layers without rates are sent
whole. The server averages over all participants alike, an entry that one does not send counting as zero (Algorithm 1).
T is not in the paper; 3 is that of Molchanov et al. (2017). Models go down dense, where the paper counts the sparse
averages that devices could as well download.

The paper's training is FedSGD under Adam: ``--local-steps 1 --batch 128 --lr 1`` with a bundle of plain SGD makes a
round's differences minus the gradients, from which the server's Adam moves theta and each device's own moves its log
alpha. More local steps make them the pseudo-gradients of FedAdam (Reddi et al., 2021); another ``--lr`` scales them,
which Adam takes no notice of but for ``eps``, and small ones are lost in the rounding of float32. With ``server =
average`` nothing is rescaled: one local step is Algorithm 1 with eta = ``--lr``, more are FedAvg.

With alpha local nobody decides what the final model is, and the paper does not say. Each update tells its sender's
mask (coded by the positions of the fewer, of what is sent and what is not), so the server prunes by majority without
another message: what is scored and at last written has zeros where more than half of the devices, by the last update
of each, no longer send. Training goes on from the weights before pruning, which are the run's checkpoints. The server
remembers n / 8 bytes a device, and a simulation writes them all down every round.

With k of the n = 269,322 numbers of the MLP 784-256-256-10 (522 of them biases) sent, an update is 5 + 4 k bytes and
the positions, at most n / 8 bytes and none while k = n.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.adam import adam
from edge_fl.core.bundle import PLAIN_SGD, Manifest
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import Change, PrunesModel, State, Stateful, UpdatesModel
from edge_fl.methods.base import Job, LocalHalf, LocalStep, Method
from edge_fl.methods.capabilities import (
    ChecksBundle,
    ClientReport,
    LearnsFromReports,
    SelectsEntries,
    SendsEntries,
    TrainsSlots,
)

__all__ = ["METHOD", "VarDrop", "VarDropParameters"]

_RATES = "log_alpha."
_SENT = "sent|"


class VarDropParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What variational dropout takes.

    Parameters
    ----------
    threshold
        T, in log alpha: entries above it are pruned.
    kl
        Multiplies the divergence's weight of 1 / N, at least 0.
    start
        The range from which log alpha is drawn uniformly at first, the same on all devices. The paper does not say how.
    server
        What the server makes of the average, and devices of their log alpha's change: ``adam`` takes an Adam step,
        ``average`` nothing.
    lr
        The length of Adam's step for theta.
    rate_lr
        The length of Adam's step for log alpha. The default is ours: a weight that the divergence alone moves takes 558
        rounds of 0.03 from log alpha = -4 to 3, 1,605 of 0.01 and 150 of 0.1.
    betas
        Adam's decay rates.
    eps
        Adam's term for numerical stability.
    """

    threshold: float = 3.0
    kl: float = 1.0
    start: tuple[float, float] = (-5.0, -3.0)
    server: Literal["adam", "average"] = "adam"
    lr: float = 0.001
    rate_lr: float = 0.03
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        low, high = self.start
        if not (isfinite(self.threshold) and isfinite(low) and isfinite(high) and low <= high):
            raise ConfigError("Vardrop's threshold and start must be numbers, and the start's from low to high.")
        if not 0 <= self.kl < float("inf"):
            raise ConfigError(f"Vardrop's kl must be at least 0, not {self.kl}.")
        positive = all(0 < value < float("inf") for value in (self.lr, self.rate_lr, self.eps))
        if not positive or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError("Vardrop's lr, rate_lr and eps must be above 0, and its betas in [0, 1).")


class _Adam:
    """Adam from round to round, on what a round changed: minus the gradient, and so is its first moment."""

    def __init__(self, parameters: VarDropParameters, lr: float) -> None:
        self._parameters, self._lr = parameters, lr
        self._number = 0
        self._moments: dict[str, NDArray[Any]] = {}

    def moved(self, change: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What to change instead."""
        self._number += 1
        p, moved = self._parameters, {}
        for name, array in change.items():
            first, second = f"exp_avg.{name}", f"exp_avg_sq.{name}"
            moved[name], self._moments[first], self._moments[second] = adam(
                array,
                self._moments.get(first, np.zeros_like(array)),
                self._moments.get(second, np.zeros_like(array)),
                number=self._number,
                lr=self._lr,
                betas=p.betas,
                eps=p.eps,
            )
        return moved

    def state(self) -> dict[str, NDArray[Any]]:
        """What :meth:`load_state_dict` goes on from."""
        return {"number": np.array(self._number), **self._moments}

    def load_state_dict(self, state: State) -> None:
        """Go on from :meth:`state`, among whatever else is in ``state``."""
        self._number = int(state.get("number", 0))
        self._moments = {name: array for name, array in state.items() if name.startswith("exp_avg")}


class _Local(LocalHalf, TrainsSlots, SelectsEntries):
    """One device's part of Algorithm 1, without the gradient step, and its log alpha."""

    def __init__(self, job: Job, parameters: VarDropParameters) -> None:
        super().__init__(LocalStep(Pattern.full(job.layout)))
        self._job, self._parameters = job, parameters
        held = {name: array for name, array in job.state.items() if name.startswith(_RATES)}
        self._rates = held or _first_rates(job, parameters)
        self._anew: Weights = self._rates
        self._adam = _Adam(parameters, parameters.rate_lr)
        self._adam.load_state_dict(job.state)

    @property
    def slots(self) -> Weights:
        """``log_alpha.NAME``, as the last accepted round left it."""
        return self._rates

    def extra(self, selection: Selection, number: int) -> dict[str, NDArray[np.float32]]:
        """The divergence's weight ``kl``, and ``output_noise.NAME``, ``[B, ...]`` standard normal numbers."""
        del selection
        job = self._job
        stream = Stream.of(
            seed=job.seed, purpose="vardrop-noise", client=job.client, round=job.round, index=number
        )
        extra = {"kl": np.array(self._parameters.kl / job.samples, dtype=np.float32)}
        for outputs in job.output_noise:
            drawn = stream.normal(job.batch * outputs.size).astype(np.float32)
            extra[f"output_noise.{outputs.name}"] = drawn.reshape(job.batch, *outputs.shape)
        return extra

    def trained(self, slots: Weights) -> None:
        """Move log alpha as the server moves theta."""
        change = {name: slots[name] - rates for name, rates in self._rates.items()}
        if self._parameters.server == "adam":
            change = self._adam.moved(change)
        self._anew = {name: rates + change[name] for name, rates in self._rates.items()}

    @property
    def sent(self) -> dict[str, NDArray[np.bool_]]:
        """M(alpha) of eq. (4)."""
        return {n.removeprefix(_RATES): rates <= self._parameters.threshold for n, rates in self._rates.items()}

    def state(self) -> State:
        """``log_alpha.NAME`` and its Adam's."""
        return {**self._anew, **self._adam.state()}


def _first_rates(job: Job, parameters: VarDropParameters) -> dict[str, NDArray[np.float32]]:
    """``log_alpha.NAME`` at first: the same on all devices."""
    stream = Stream.of(seed=job.seed, purpose="vardrop-rates")
    low, high = parameters.start
    rates = {}
    for outputs in job.output_noise:
        tensor = job.layout.tensor(outputs.name)
        uniform = (stream.uint32(tensor.size).astype(np.float64) + 0.5) / 2.0**32
        rates[f"{_RATES}{tensor.name}"] = (low + (high - low) * uniform).astype(np.float32).reshape(tensor.shape)
    return rates


class VarDrop(Method, LearnsFromReports, UpdatesModel, PrunesModel, Stateful, ChecksBundle, SendsEntries):
    """Devices learn which weights are noise, stop sending these, and the server prunes what most no longer send."""

    name = "vardrop"
    Parameters = VarDropParameters
    parameters: VarDropParameters
    rule = "mean"  # Algorithm 1's over all devices: what is not sent counts as zero
    weighting = "clients"
    mode: Mode = "rows"  # without a dropped row both modes are one

    def __init__(self, parameters: VarDropParameters) -> None:
        super().__init__(parameters)
        self._adam = _Adam(parameters, parameters.lr)
        self._layout: Layout | None = None
        self._masks: dict[str, NDArray[np.uint8]] = {}
        self._votes: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    @property
    def variant(self) -> str:
        """The step that trains rates."""
        return "vardrop"

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """Every unit, whatever the tier: single weights are dropped."""
        del tier
        return dict(layout.sizes)

    def unfit(self, manifest: Manifest) -> str | None:
        """Only after plain SGD are a round's differences the gradients that they are taken for."""
        if manifest.layout.personal:
            return "'vardrop' moves all weights by the server's optimiser: export the bundle without --personal."
        if manifest.optimizer == PLAIN_SGD:
            return None
        return (
            "'vardrop' brings its own optimiser: export the bundle with --optimizer sgd and nothing added to it."
        )

    def local(self, job: Job) -> LocalHalf:
        """Take up the device's log alpha."""
        return _Local(job, self.parameters)

    def server_update(self, round: int, change: Change) -> Change:
        """Adam's step, or the average as it is."""
        del round
        return self._adam.moved(change) if self.parameters.server == "adam" else change

    def learn(self, round: int, reports: Sequence[ClientReport]) -> None:
        """Count the devices that send each entry, by the last update of each."""
        del round
        for update in reports:
            if update.sent is not None:
                self._layout = update.pattern.layout
                self._count(update.client, np.packbits(update.sent))

    def final_weights(self, weights: Weights) -> Weights:
        """The model without the entries that more than half of the devices drop."""
        if self._layout is None:
            return weights
        kept, start, pruned = 2 * self._votes >= len(self._masks), 0, dict(weights)
        for tensor in self._layout.parameters:
            own = kept[start : start + tensor.size].reshape(tensor.shape)
            pruned[tensor.name] = np.where(own, weights[tensor.name], np.float32(0))
            start += tensor.size
        return pruned

    def state_dict(self) -> State:
        """Adam's state, and each device's last mask, packed."""
        return {**self._adam.state(), **{f"{_SENT}{client}": mask for client, mask in self._masks.items()}}

    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Go on with both, in place of what was learned since."""
        self._adam.load_state_dict(learned)
        self._masks.clear()
        self._layout = None
        for name, mask in learned.items():
            if name.startswith(_SENT):
                self._layout = layout
                self._count(name.removeprefix(_SENT), mask)

    def _count(self, client: str, mask: NDArray[np.uint8]) -> None:
        """Take a device's mask (``[n]`` bits, packed) in place of its last one."""
        assert self._layout is not None
        size = sum(tensor.size for tensor in self._layout.parameters)
        votes = self._votes if self._masks else np.zeros(size, dtype=np.int64)
        if client in self._masks:
            votes = votes - np.unpackbits(self._masks[client], count=size)
        self._votes = votes + np.unpackbits(mask, count=size)
        self._masks[client] = mask


METHOD = VarDrop
