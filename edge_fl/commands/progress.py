"""Telling on stderr what a long command is doing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(doing: str, stages: int | None = None) -> Iterator[Callable[[str], None]]:
    """Give what is to be told of each stage of ``doing`` as it begins: a line a stage where there is no terminal.

    Parameters
    ----------
    stages
        How often that will be, for a bar; None where nobody knows, for one line that changes.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"{doing}: {text}", highlight=False, markup=False, soft_wrap=True)
    elif stages is None:
        with console.status(doing) as status:
            yield lambda text: status.update(f"{doing}: {text}")
    else:
        columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.description}"), console=console) as bar:
            task = bar.add_task("", total=stages, completed=-1)
            yield lambda text: bar.update(task, advance=1, description=text)
            bar.update(task, completed=stages, description="done")
