"""`rutc db`: the commands about the database of tuning records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rutc.report.console import command
from rutc.report.flags import AsJson, Db, Debug, Quiet
from rutc.report.printable import counted

if TYPE_CHECKING:
    from rutc.tuner.database import Database
    from rutc.tuner.stored import Added

app = typer.Typer(
    no_args_is_help=True,
    help="Look at the database of tuning records, and share it (docs/database.md).",
)

Replace = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="Let what is added take the place of what is there, not the narrower interval.",
    ),
]
Records = Annotated[
    Path, typer.Argument(metavar="FILE.jsonl.gz", help="Tuning records as lines of JSON.")
]


@app.command()
def stats(
    db: Db = None, quiet: Quiet = False, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Show what is stored: tasks, trials, machines, versions, size."""
    with command(as_json=as_json, debug=debug, quiet=quiet) as screen:
        from rutc.report import records
        from rutc.report.arguments import check_database
        from rutc.tuner.database import Database

        check_database(db)
        with Database.open(db, create=False) as database:
            found = database.stats()
        screen.result(
            records.stats_json(found), records.stats_text(found), *records.stats_tables(found)
        )


@app.command()
def export(
    file: Records,
    db: Db = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write all records into a file."""
    with command(as_json=as_json, debug=debug, quiet=quiet) as screen:
        from rutc.report import records
        from rutc.report.arguments import check_database
        from rutc.tuner.database import Database

        check_database(db)
        with Database.open(db, create=False) as database:
            count = records.write_export(database, file)
        screen.result({"file": file, "trials": count}, f"{file}: {counted(count, 'trial')}")


@app.command("import")
def import_command(
    file: Records,
    replace: Replace = False,
    db: Db = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Add the records of a file that export wrote, all of them or none."""
    _added(db, lambda database: database.load(file, replace=replace), quiet, as_json, debug)


@app.command()
def merge(
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The database to read: a file or a URL.")
    ],
    replace: Replace = False,
    db: Db = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Add the records of another database, all of them or none."""
    _added(db, lambda database: database.merge(other, replace=replace), quiet, as_json, debug)


def _added(
    db: str | None, add: Callable[[Database], Added], quiet: bool, as_json: bool, debug: bool
) -> None:
    """Adds records to a database, and shows what became of them."""
    with command(as_json=as_json, debug=debug, quiet=quiet) as screen:
        from rutc.report import records
        from rutc.report.arguments import check_database
        from rutc.tuner.database import Database

        check_database(db)
        with Database.open(db) as database:
            added, where = add(database), str(database.location)
        screen.result(records.added_json(added, where), records.added_text(added, where))
