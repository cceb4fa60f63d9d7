"""What a search of a model is for, how it runs the model, and who is told what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.timing.cluster import Cluster
from rutc.driver.timing.model_bench import Subject
from rutc.driver.tuning.plan_search import PlanProgress
from rutc.driver.tuning.schedule_search import Progressing, Tuning
from rutc.tuner.choice import Choice


@record
class Searched:
    """What is searched: the plan, unless `plans` is false, and then schedules of its kernels.

    `names` are parts of the names of kernels to search, all if there are none; the plan then stays
    as it is. What is `given` of a kernel, schedules made by hand, is tried before all others; those
    that do not apply are left out. With `seeds` the fastest schedules on record of similar kernels
    come next. Random choices begin with a `seed`.
    """

    names: Sequence[str] = ()
    plans: bool = True
    given: Callable[[Subject], Iterable[Choice]] = lambda subject: ()
    seeds: bool = False
    seed: int = 0


@record
class TimedRuns:
    """How the model is run: on a CPU, or any; where sizes are symbolic, of these, or common ones.

    Sizes go by the model's own names. With a `cluster` its workers try schedules, and the plan
    stays as it is: its client has threads, beside which no process is copied.
    """

    cpu: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    cluster: Cluster | None = None


@record
class Listeners:
    """Who is told: after a round for plans, after a batch of schedules, and of other stages."""

    on_plan: Callable[[PlanProgress], None] = lambda outcome: None
    on_batch: Callable[[Progressing, Tuning], None] = lambda subject, tuning: None
    on_progress: Progress = nobody


EVERYTHING, ANYWHERE, NOBODY = Searched(), TimedRuns(), Listeners()
