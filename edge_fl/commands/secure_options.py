"""Options of secure aggregation, alike in `serve` and `simulate`."""

from typing import TYPE_CHECKING, Annotated

import typer

from edge_fl.commands.options import refuse_given

if TYPE_CHECKING:
    from edge_fl.runs.config import SecureAggregation

__all__ = ["Secure", "SecureCohort", "SecureHolders", "SecureReach", "SecureThreshold", "secure_of"]

Secure = Annotated[
    bool,
    typer.Option("--secure-aggregation", help="Learn the sum of updates alone, and no device's own."),
]
SecureHolders = Annotated[
    int, typer.Option(min=2, help="How many devices of a cohort must hold a row, or its sum is left out.")
]
SecureThreshold = Annotated[
    float, typer.Option(help="Share of a cohort that must stay until its sum is made, above 0.5.")
]
SecureReach = Annotated[
    float, typer.Option(help="The most by which an update changes an entry; a larger change is cut to that.")
]
SecureCohort = Annotated[int, typer.Option(help="The most devices that are summed together.")]

_INSPECTING = ("norm_bound", "robust", "rollback")


def secure_of(
    context: typer.Context, secure: bool, *, holders: int, threshold: float, reach: float, cohort: int
) -> "SecureAggregation | None":
    """What these options come to; ConfigError where an option that looks at single updates was given, too."""
    if not secure:
        refuse_given(
            context,
            ("secure_holders", "secure_threshold", "secure_reach", "secure_cohort"),
            "means nothing without --secure-aggregation",
        )
        return None
    from edge_fl.runs.config import SecureAggregation

    refuse_given(context, _INSPECTING, "looks at single updates, which --secure-aggregation hides")
    return SecureAggregation(holders=holders, threshold=threshold, reach=reach, cohort=cohort)
