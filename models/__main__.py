"""`python -m rutc.models` lists the zoo; `python -m rutc.models NAME...` obtains models of it."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rutc.errors import RutcError
from rutc.models.model_cache import cache_folder
from rutc.models.zoo import Model, find, zoo

INPUTS_SHOWN = 3


def _size(model: Model) -> str:
    """Returns the size of the model's file, or a dash when it is not on this machine yet."""
    path = model.source.present()
    return "-" if path is None else f"{path.stat().st_size / 1e6:.1f} MB"


def _inputs(model: Model) -> str:
    """Returns the names and shapes of the first few inputs."""
    described = [
        f"{name} {'x'.join(str(extent) for extent in shape) or 'scalar'}"
        for name, shape in model.shapes.items()
    ]
    more = len(described) - INPUTS_SHOWN
    shown = ", ".join(described[:INPUTS_SHOWN])
    return f"{shown}, {more} more" if more > 0 else shown


def _listing() -> Table:
    """Returns the table of all models."""
    table = Table(title="The model zoo", caption=f"cache: {cache_folder()}")
    table.add_column("name", no_wrap=True)
    table.add_column("what it tells")
    table.add_column("source")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("inputs")
    for model in zoo():
        source = model.source.describe()
        table.add_row(model.name, model.summary, source, _size(model), _inputs(model))
    return table


def _obtain(console: Console, models: Sequence[Model]) -> None:
    """Obtains the models one after another, showing how far it is, and prints their paths."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    quiet = not console.is_terminal
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet
    ) as progress:
        task = progress.add_task("", total=len(models))
        for model in models:
            progress.update(task, description=f"{model.name}: {model.source.describe()}")
            path = model.obtain()
            progress.advance(task)
            console.print(f"{model.name}  {_size(model)}  {path}", soft_wrap=True, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the command `arguments`: 0, or that of the error it printed."""
    parser = argparse.ArgumentParser(
        prog="python -m rutc.models",
        description="List the model zoo, or obtain models of it into the cache.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a model to obtain")
    parser.add_argument("--all", action="store_true", help="obtain every model")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        chosen = zoo() if options.all else tuple(find(name) for name in options.names)
        if chosen:
            _obtain(console, chosen)
        else:
            console.print(_listing())
    except RutcError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
