"""FjORD with knowledge distillation (Horvath et al., 2021, sections 3.2 and 4): p_max teaches the narrower width drawn.

Each local step draws p as FjORD does, with the same draws. Where p < p_max both sub-models are trained (eq. (1)):

    CE(F_pmax, y) + (1 - alpha) CE(F_p, y) + alpha T^2 KL,

KL between their softmaxes at temperature T. The teacher is trained too, which the paper found to help; p_max may be
the width of the device, who has no full model. Where p = p_max, the loss is CE(F_pmax, y), by the plain program, which
is also all that a tier of a single width runs. What is uploaded, and how it is averaged, is FjORD's.

Eq. (1) can be read with either softmax as KL's first argument; both can be had (``direction``): ``teacher-student``,
the default and Hinton et al.'s, is the sum of teacher * log(teacher / student). On the digits in five tiers it did
better than the other at p = 0.2, and as well at wider ones.

A step with a student costs the forward and backward pass of p_max twice, as the student is masked in place. In a
bundle exported with ``--batch-norm per-width`` it brings BatchNorm's statistics of both widths up to date, and in any
other the teacher's.

Drops what FjORD drops; an update is as large.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern, prefix_units
from edge_fl.core.selection import Selection
from edge_fl.core.width_statistics import one_hot
from edge_fl.methods.base import Job, LocalHalf, LocalStep
from edge_fl.methods.fjord import Fjord, FjordParameters, draw_width

__all__ = ["METHOD", "FjordKd", "FjordKdParameters"]

_ALONE = "plain"


class FjordKdParameters(FjordParameters, frozen=True, forbid_unknown_fields=True):
    """What ``fjord+kd`` takes beside ``widths``; the paper's best are alpha = T = 1.

    Parameters
    ----------
    alpha
        The weight of the distillation loss, in [0, 1].
    temperature
        The temperature T of both softmaxes, above 0.
    direction
        Whose distribution is the reference of the KL divergence: ``teacher-student`` is KL(teacher || student).
    """

    alpha: float = 1.0
    temperature: float = 1.0
    direction: Literal["teacher-student", "student-teacher"] = "teacher-student"

    def __post_init__(self) -> None:
        FjordParameters.__post_init__(self)
        if not 0 <= self.alpha <= 1 or not 0 < self.temperature < float("inf"):
            raise ConfigError("FjORD's alpha must be in [0, 1] and its temperature above 0.")


class _Local(LocalHalf):
    """Local iterations of section 4 with p_max as teacher."""

    def __init__(self, job: Job, parameters: FjordKdParameters, widths: tuple[int, ...]) -> None:
        self._job, self._parameters, self._widths = job, parameters, widths
        self._teaching = LocalStep(Pattern.prefix(job.layout, max(widths)))
        self._alone = replace(self._teaching, variant=_ALONE)
        self._draw(0)

    def _draw(self, number: int) -> None:
        self._student = draw_width(self._job, self._widths, number)
        self.step = self._alone if self._student == max(self._widths) else self._teaching

    def extra(self, selection: Selection, number: int) -> dict[str, NDArray[np.float32]]:
        """What the program ``distil`` takes: the student's units among the teacher's, alpha, T and the direction."""
        del selection, number
        if self.step.variant == _ALONE:
            return {}
        forward = self._parameters.direction == "teacher-student"
        numbers = {
            "alpha": self._parameters.alpha,
            "temperature": self._parameters.temperature,
            "forward": float(forward),
        }
        extra = {name: np.array(value, dtype=np.float32) for name, value in numbers.items()}
        for block in self._job.layout.blocks:
            kept = np.arange(self.step.pattern.counts[block.name]) < prefix_units(block.size, self._student)
            extra[f"student.{block.name}"] = kept.astype(np.float32)
        if self._job.statistic_widths:
            extra["student_width"] = one_hot(self._job.statistic_widths, self._student)
        return extra

    def after_step(self, number: int, loss: float) -> None:
        """Draw the next step's student."""
        del loss
        self._draw(number + 1)


class FjordKd(Fjord):
    """FjORD in which the widest sub-model that a device can run teaches the narrower ones."""

    name = "fjord+kd"
    Parameters = FjordKdParameters
    parameters: FjordKdParameters

    @property
    def variant(self) -> str:
        """The step of two sub-models."""
        return "distil"

    def programs(self, layout: Layout, tier: int) -> list[tuple[str, dict[str, int]]]:
        """At p_max alone: the plain one, and where there is a narrower width the one that distils."""
        narrower = len(self.allowed(tier)) > 1
        variants = (self.variant, _ALONE) if narrower else (_ALONE,)
        return [(variant, self.counts(layout, tier)) for variant in variants]

    def local(self, job: Job) -> LocalHalf:
        """Draw a student for each step."""
        return _Local(job, self.parameters, self.allowed(job.tier))


METHOD = FjordKd
