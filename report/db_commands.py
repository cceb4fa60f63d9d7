"""`rutc db`: the commands about the database of tuning records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rutc.report.command import command
from rutc.report.console import Screen
from rutc.report.flags import Db
from rutc.report.printable import counted

if TYPE_CHECKING:
    from rutc.tuner.database.database import Database
    from rutc.tuner.database.stored import Added

app = typer.Typer(
    no_args_is_help=True,
    help="Look at the database of tuning records, and share it (docs/database.md).",
)

Replace = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="Let what is added replace what is there, also where its interval is wider.",
    ),
]
Records = Annotated[
    Path, typer.Argument(metavar="FILE.jsonl.gz", help="Tuning records as lines of JSON.")
]


@app.command()
@command()
def stats(screen: Screen, db: Db = None) -> None:
    """Show what is stored: tasks, trials, machines, versions, size."""
    from rutc.report import records
    from rutc.report.arguments import check_database
    from rutc.tuner.database.database import Database

    check_database(db)
    with Database.open(db, create=False) as database:
        found = database.stats()
    screen.result(
        records.stats_json(found), records.stats_text(found), *records.stats_tables(found)
    )


@app.command()
@command()
def export(screen: Screen, file: Records, db: Db = None) -> None:
    """Write all records into a file."""
    from rutc.report import records
    from rutc.report.arguments import check_database
    from rutc.tuner.database.database import Database

    check_database(db)
    with Database.open(db, create=False) as database:
        count = records.write_export(database, file)
    screen.result({"file": file, "trials": count}, f"{file}: {counted(count, 'trial')}")


@app.command("import")
@command()
def import_command(screen: Screen, file: Records, replace: Replace = False, db: Db = None) -> None:
    """Add the records of a file that export wrote, all of them or none."""
    _added(screen, db, lambda database: database.load(file, replace=replace))


@app.command()
@command()
def merge(
    screen: Screen,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The database to read: a file or a URL.")
    ],
    replace: Replace = False,
    db: Db = None,
) -> None:
    """Add the records of another database, all of them or none."""
    _added(screen, db, lambda database: database.merge(other, replace=replace))


def _added(screen: Screen, db: str | None, add: Callable[[Database], Added]) -> None:
    """Adds records to a database, and shows what became of them."""
    from rutc.report import records
    from rutc.report.arguments import check_database
    from rutc.tuner.database.database import Database

    check_database(db)
    with Database.open(db) as database:
        added, where = add(database), str(database.location)
    screen.result(records.added_json(added, where), records.added_text(added, where))
