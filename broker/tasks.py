"""Tasks: what one client is asked in one round."""

import msgspec

from edge_fl.core.content import Ref
from edge_fl.core.layout import Layout
from edge_fl.core.selection import Weights
from edge_fl.methods.base import Ask
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig
from edge_fl.wire.masks import encode_mask
from edge_fl.wire.messages import Clipping, Task

__all__ = ["make_task"]


def make_task(
    config: RunConfig,
    recipe: Recipe,
    layout: Layout,
    *,
    client: str,
    tier: int,
    round: int,
    accepted: int,
    model: Ref,
    weights: Weights,
    changes: tuple[Ref, ...] | None = None,
    withheld: bool = False,
    clipping: Clipping | None = None,
) -> Task:
    """The task of ``client`` in ``round``, with the pattern that the method's server half assigns, if it does.

    ``accepted`` is the last round whose update was taken from this client (0: none), ``model`` the frame to train,
    ``weights`` its full tensors by name (none for a rehearsal), and ``changes`` what leads there from the model that it
    trained then (None where models travel whole). The update's values are ``withheld`` for secure aggregation;
    ``clipping`` is what makes an update private, in a private run.
    """
    ask = Ask(layout=layout, client=client, tier=tier, round=round, seed=config.seed, weights=weights)
    assigned = recipe.method.assign(ask)
    task = Task(
        run=config.run,
        round=round,
        accepted=accepted,
        model=model,
        method=recipe.name,
        parameters=recipe.parameters,
        steps=config.local_steps,
        batch=config.batch,
        lr=config.lr_of(round),
        seed=config.seed,
        tier=tier,
        since=round - 1 - len(changes or ()),
        changes=changes,
        withheld=withheld,
        clipping=clipping or msgspec.UNSET,
        without_statistics=msgspec.UNSET if config.sends_statistics(round) or not layout.statistics else True,
    )
    if assigned is None:
        return task
    mask, pattern = encode_mask(assigned)
    return msgspec.structs.replace(task, mask=mask, pattern=pattern)
