"""What a database of tuning records has for a compilation."""

from __future__ import annotations

from rutc.base.record import record
from rutc.driver.compile_job import Chooser
from rutc.driver.options import Options
from rutc.driver.plan_records import RecordedPlans
from rutc.driver.tuning_records import RecordedSchedules
from rutc.emit.targets import target_named
from rutc.tuner.database import Database


@record
class Records:
    """The plans of models, and the schedules of kernels, that are faster than the usual ones."""

    plans: RecordedPlans
    schedules: Chooser


def records_in(database: Database, options: Options) -> Records:
    """Returns what a database has for models that are compiled so."""
    machine = target_named(options.target).machine
    plans = RecordedPlans(database, machine, options)
    return Records(plans, RecordedSchedules(database, machine))
