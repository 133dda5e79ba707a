"""ExecuTorch's training format: forward and backward in one graph, for each width and batch.

torch.export adds the backward pass, under the same table of decompositions as in the functional step: the stock
kernels of some gradients are wrong (that of max-pooling adds up over calls).
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.export.exported_program import _decompose_exported_program

from edge_fl.core.bundle import Program
from edge_fl.core.errors import UnsupportedModelError
from exporter.lower import Lowered, Report, Request, kept_at
from exporter.lower.executorch import EVALUATION_BATCH, to_executorch
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.recurrent import unrolled
from exporter.sentence import first_line
from exporter.source import Step, Traceable
from exporter.trace import export_static

__all__ = ["lower"]


def lower(request: Request, report: Report) -> Lowered:
    """One ``.pte`` a step variant and width, and one that evaluates.

    Raises
    ------
    UnsupportedModelError
        When ExecuTorch has no kernel for an operation of the model.
    """
    lowered: Lowered = []
    for step in request.steps:
        for width in request.widths:
            report(f"train step '{step.variant}' at width {width / 1000:g}")
            kept = kept_at(step.source.layout, width)
            file = f"executorch_training/step-{step.variant}-w{width:04d}-b{request.batch}.pte"
            program = Program(
                file, "step", step.inputs, step.outputs, variant=step.variant, kept=kept, batch=request.batch
            )
            with unrolled(derived=True):  # it has no loops, and torch's joint export no autograd.Function
                lowered.append((program, to_executorch(_joint(step, kept, request.batch))))
    full = request.evaluation.source.full
    for kind, whole in request.whole(report):
        batch = EVALUATION_BATCH if kind == "eval" else request.batch  # below lies the larger part of a model
        file = f"executorch_training/{kind}.pte"
        program = Program(file, kind, whole.inputs, whole.outputs, kept=full, batch=batch)
        with unrolled():
            exported = export_static(whole, full, batch, executorch_decompositions())
        lowered.append((program, to_executorch(exported)))
    return lowered


class _Holding(nn.Module):
    """A function of tensors as a module that holds some of its arguments: each under its port's name."""

    def __init__(self, program: Traceable, held: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._program = program
        for name, tensor in held.items():
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in dict(owner.named_children()):
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(last, nn.Parameter(tensor))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        # By a view of its own: torch's joint export names gradients, and two biases that are summed have one otherwise.
        held, rest = {name: tensor.view(tensor.shape) for name, tensor in self.named_parameters()}, iter(inputs)
        return self._program.function(*(held[n] if n in held else next(rest) for n in self._program.inputs))


def _joint(step: Step, kept: Mapping[str, int], batch: int) -> ExportedProgram:
    objective = step.objective
    arguments = dict(zip(objective.inputs, objective.example(kept, batch), strict=True))
    held = {name: arguments.pop(name) for name in step.trained}
    try:
        forward = export(_Holding(objective, held), tuple(arguments.values()), strict=False)
        # What torch.export.experimental._export_forward_backward does, but for its table.
        joint: ExportedProgram = _decompose_exported_program(
            forward,
            cia_to_decomp={},
            python_decomp_table=dict(executorch_decompositions()),
            joint_loss_index=0,
            decompose_custom_triton_ops=False,
        )
        return joint
    except Exception as error:  # torch raises many types on what it cannot trace
        raise UnsupportedModelError(
            f"torch.export cannot give the model's forward and backward pass as one graph: {first_line(error)}."
        ) from error
