"""How the database of tuning records looks: JSON and tables, and where it goes as a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rutc.base.files import cannot_write, check_replaceable, sweep, temporary_file
from rutc.report.display import BYTES, Json, quantity
from rutc.report.listing import Table
from rutc.report.printable import counted
from rutc.tuner.database.database import Database, Stats
from rutc.tuner.database.stored import Added


def stats_json(stats: Stats) -> Json:
    """Returns what a database holds, as JSON."""
    return {**asdict(stats), "statuses": dict(stats.statuses), "versions": dict(stats.versions)}


def stats_text(stats: Stats) -> str:
    """Returns what a database holds, in a line."""
    size = "" if stats.bytes is None else f", {quantity(stats.bytes, 'B', BYTES)}"
    return (
        f"{stats.where}: {counted(stats.trials, 'trial')} of {counted(stats.tasks, 'task')}{size}; "
        f"tables of version {stats.schema}"
    )


def stats_tables(stats: Stats) -> list[Table]:
    """Returns the trials by status, machine and version of rutc."""
    if stats.trials == 0:
        return []
    statuses = Table("trials", "number")
    for status, number in stats.statuses:
        statuses.add(status, str(number))
    machines = Table("CPU", "processor", "trials", "last", names=("CPU", "processor"))
    for machine in stats.machines:
        machines.add(machine.cpu, machine.processor, str(machine.trials), machine.last)
    versions = Table("rutc", "trials")
    for version, number in stats.versions:
        versions.add(version, str(number))
    return [statuses, machines, versions]


def added_json(added: Added, where: str) -> Json:
    """Returns what became of trials that were to be added, as JSON."""
    return {"where": where, **asdict(added)}


def added_text(added: Added, where: str) -> str:
    """Returns what became of trials that were to be added, in a line."""
    return (
        f"{where}: {counted(added.new, 'new trial')}; {added.replaced} took the place of others, "
        f"{added.kept} did not"
    )


def write_export(database: Database, path: Path) -> int:
    """Writes a database into a file, complete or not at all; returns the number of trials.

    Raises:
        UserError: the file cannot be written, or the database not be read.
    """
    check_replaceable(path)
    sweep(path.parent)
    try:
        with temporary_file(path.parent) as (number, temporary):
            with open(number, "wb", closefd=False) as file:
                count = database.export(file)
            temporary.replace(path)
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error
    return count
