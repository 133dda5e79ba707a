"""Commands that take ``--method`` once: a second one would silently take the place of the first."""

from typing import Any

from typer.core import TyperCommand

from edge_fl.core.errors import ConfigError

__all__ = ["OnceCommand"]


class OnceCommand(TyperCommand):
    """Refuses a second ``--method``, unless the command takes several."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As any command; raises ConfigError."""
        words = list(args)
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # a shell that completes
            return rest
        order = self.make_parser(ctx).parse_args(args=words)[2]
        if sum(parameter.name == "method" and not parameter.multiple for parameter in order) > 1:
            raise ConfigError(
                "--method is given twice, and a run has one: join a method and a compressor, as in "
                "'--method mine.py:Mine+theirs.py:Theirs'."
            )
        return rest
