"""What a database of tuning records has for a compilation."""

from __future__ import annotations

from rutc.base.record import record
from rutc.driver.options import Options
from rutc.driver.plans.planning import machine_for
from rutc.driver.tuning.plan_records import RecordedPlans
from rutc.driver.tuning.tuning_records import RecordedSchedules
from rutc.tuner.database.database import Database


@record
class Records:
    """The plans of models, and the schedules of kernels, that are faster than the usual ones."""

    plans: RecordedPlans
    schedules: RecordedSchedules


def records_in(database: Database, options: Options) -> Records:
    """Returns what a database has for models that are compiled so."""
    machine = machine_for(options)
    plans = RecordedPlans(database, machine, options)
    return Records(plans, RecordedSchedules(database, machine))
