"""How far an export has come: a bar on a terminal, a line a stage elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(what: str, stages: int) -> Iterator[Callable[[str], None]]:
    """Give what is to be told of each stage of ``what`` as it begins; ``stages`` is how often that will be."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"{what}: {text}", highlight=False)
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as bar:
        task = bar.add_task("", total=stages, completed=-1)
        yield lambda text: bar.update(task, advance=1, description=text)
        bar.update(task, completed=stages, description="done")
