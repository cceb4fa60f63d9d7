"""`rutc tune`: searches for schedules of a model's kernels, and shows how it gets on."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from rutc.base.progress import Progress
from rutc.errors import UserError
from rutc.report.command import command
from rutc.report.console import INTERRUPTED, Json, Screen
from rutc.report.flags import CompileFlags, Db, Model, Target, compile_flags
from rutc.report.printable import counted

if TYPE_CHECKING:
    from rutc.driver.options import Options
    from rutc.driver.timing.side_by_side import Ratio
    from rutc.driver.tuning.plan_search import PlanProgress
    from rutc.driver.tuning.schedule_search import Progressing, SearchLimits, Tuning
    from rutc.driver.tuning.search_terms import Searched, TimedRuns
    from rutc.driver.tuning.tune_model import TuningReport
    from rutc.driver.tuning.tune_plan import PlanFound
    from rutc.report.listing import Table

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


def seconds_of(text: str) -> float:
    """Returns the seconds that a text tells: `60s`, `5m`, `1.5h`, `90`.

    Raises:
        UserError: it is no duration.
    """
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", text.strip())
    if found is None or found[2] not in UNITS or not 0 < float(found[1]) < inf:
        raise UserError(f"{text!r} is no duration: write 60s, 5m or 1h")
    return float(found[1]) * UNITS[found[2]]


@command(flags=compile_flags)
def tune(
    screen: Screen,
    model: Model,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="60s|5m|1h", help="How long to search; default: 5m."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The most schedules to try.")
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            "--kernel",
            metavar="PART",
            help="Tune only kernels with PART in their names; repeatable.",
        ),
    ] = None,
    plans: Annotated[
        bool,
        typer.Option(
            "--plans/--no-plans",
            help="Search for a better plan first, for half the time, or not.",
        ),
    ] = True,
    seeds: Annotated[
        bool,
        typer.Option(
            "--seeds", help="Try the fastest recorded schedules of similar kernels first."
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="URL",
            help="A dask scheduler whose workers try schedules: tcp://HOST:8786.",
        ),
    ] = None,
    *,
    db: Db = None,
    target: Target = "native",
    flags: CompileFlags,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=N",
            help="A size of the runs that are timed, where the model leaves it open; default: the "
            "size that it is planned for. Repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The seed of random choices.")] = 0,
    cpu: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The CPU to run kernels on; default: any."),
    ] = None,
) -> None:
    """Search for a faster plan and schedules of a model, and keep what is measured.

    `rutc compile` then takes the fastest that are known. Ctrl-C ends the search; all that was
    measured is kept, and the next search goes on from there.
    """
    from rutc.driver.check_options import asked
    from rutc.driver.tuning.schedule_search import SearchLimits
    from rutc.driver.tuning.search_terms import Searched, TimedRuns
    from rutc.report.arguments import parse_sizes

    seconds = seconds_of(time) if time is not None else inf if trials else seconds_of("5m")
    found = _searched(
        screen,
        model,
        SearchLimits(seconds, trials or inf),
        db,
        asked(target=target, **flags),
        Searched(kernel or (), plans, seeds=seeds, seed=seed),
        TimedRuns(cpu, parse_sizes(size, "--size")),
        cluster,
    )
    tables = [tuning_table(found)] if found.tuned else []
    screen.result(tuning_json(found), *tables, *tuning_lines(found))
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def search_before(
    screen: Screen, model: Path, until: str, db: str | None, options: Options
) -> None:
    """Searches before a compilation: for so long (`60s`), or with so many trials (`500`).

    Raises:
        UserError: an option or the model is at fault.
        typer.Exit: it was interrupted.
    """
    from rutc.driver.tuning.schedule_search import SearchLimits
    from rutc.driver.tuning.search_terms import Searched, TimedRuns
    from rutc.emit.targets.select import SEPARATOR

    if SEPARATOR in options.target:
        raise UserError(
            f"--tune searches for one target, not for {options.target}: run "
            "`rutc tune --target NAME` for each, then compile without --tune, which takes what is "
            "on record of each"
        )
    trials = int(until) if until.isdecimal() and int(until) else None
    seconds = inf if trials is not None else seconds_of(until)
    limits = SearchLimits(seconds, trials or inf)
    found = _searched(screen, model, limits, db, options, Searched(), TimedRuns())
    for line in tuning_lines(found):
        screen.note(line)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _searched(
    screen: Screen,
    model: Path,
    limits: SearchLimits,
    db: str | None,
    options: Options,
    searched: Searched,
    runs: TimedRuns,
    cluster: str | None = None,
) -> TuningReport:
    """What a search finds, on the workers of a `cluster` if its address is given.

    Raises:
        UserError: an option or the model is at fault.
    """
    # Unlike other commands it makes models, and drops them, for as long as one likes.
    gc.enable()
    from rutc.driver.timing.cluster import Cluster
    from rutc.driver.tuning.search_terms import Listeners
    from rutc.driver.tuning.tune_model import tune_model
    from rutc.report.arguments import check_database
    from rutc.tuner.database.database import Database

    check_database(db)
    with (
        Database.open(db) as database,
        nullcontext() if cluster is None else Cluster(cluster) as workers,
        screen.progress() as on_progress,
    ):
        line = _Line(on_progress, limits)
        found = tune_model(
            model,
            database,
            limits,
            options,
            searched,
            replace(runs, cluster=workers),
            Listeners(_shown_plan(screen, line), _shown(screen, line), on_progress),
        )
        # Where nothing was worth a trial there is a database, too, as the report says.
        database.add(())
        return found


class _Line:
    """The line of progress: the time that is spent, or the trials where only these are limited."""

    def __init__(self, tell: Progress, limits: SearchLimits) -> None:
        self._tell, self._limits = tell, limits
        self._began = monotonic()
        self.before = 0
        """Trials of what came before."""

    def move(self, stage: str, trials: int) -> None:
        """Show a stage, in which so many trials were made."""
        if isfinite(self._limits.seconds):
            total = int(self._limits.seconds)
            self._tell(stage, min(int(monotonic() - self._began), total), total)
        else:
            done = self.before + trials
            total = int(self._limits.trials) if isfinite(self._limits.trials) else done
            self._tell(stage, min(done, total), total)


def _shown(screen: Screen, line: _Line) -> Callable[[Progressing, Tuning], None]:
    """What is called after each batch: it moves the line, and tells what a batch has brought."""
    best: dict[int, float] = {}

    def shown(t: Progressing, tuning: Tuning) -> None:
        line.move("schedules", tuning.trials)
        before = best.get(id(t), t.default_cycles)
        if not screen.quiet and not screen.as_json and t.best_cycles < 0.98 * before:
            gain = 100 * (t.default_cycles / t.best_cycles - 1)
            when = f"after {counted(t.trials, 'trial')}" if t.trials else "by what is on record"
            screen.note(f"{t.name}: {gain:.0f} % faster than default {when}")
        best[id(t)] = min(before, t.best_cycles)

    return shown


def _shown_plan(screen: Screen, line: _Line) -> Callable[[PlanProgress], None]:
    """What is called after each round for plans: it moves the line, and tells what stays."""
    told = 0

    def shown(found: PlanProgress) -> None:
        nonlocal told
        from rutc.report.listing import numeral

        line.before = 0
        line.move("plans", found.tried)
        line.before = found.tried
        for step in found.steps[told:]:
            if not screen.quiet and not screen.as_json:
                gain = 100 * (1 / step.ratio.median - 1)
                screen.note(
                    f"{step.candidate}: {gain:.0f} % faster, {numeral(step.ratio.us)} us before"
                )
        told = len(found.steps)

    return shown


def tuning_json(found: TuningReport) -> Json:
    """Returns what a search found, for `--json`."""
    return {
        "trials": found.trials,
        "failed": found.failed,
        "errors": found.errors,
        "seconds": round(found.seconds, 1),
        "database": found.database,
        "interrupted": found.interrupted,
        "sizes": found.sizes,
        "timed": "processor",
        "no_plans": found.no_plans,
        "lacked_seconds": round(found.lacked, 1),
        "runs": runs_json(found.runs),
        "plan": None if found.plan is None else plan_json(found.plan),
        "kernels": [
            {
                "name": t.name,
                "launches": t.launches,
                "trials": t.trials,
                "default_cycles": _finite(t.default_cycles),
                "best_cycles": _finite(t.best_cycles),
                "template": t.template,
                "default_us": None if t.us is None else t.us[0],
                "tuned_us": None if t.us is None else t.us[1],
                "used": t.believed,
            }
            for t in found.tuned
        ],
    }


def plan_json(found: PlanFound) -> Json:
    """Returns what became of a plan, for `--json`."""
    return {
        "tried": found.tried,
        "failed": found.failed,
        "runs": runs_json(found.runs),
        "used": found.taken,
        "changes": [
            {"change": str(s.candidate), "ratio": s.ratio.median, "us": s.ratio.us}
            for s in found.steps
        ],
    }


def runs_json(runs: Mapping[int, Ratio]) -> list[Json]:
    """Returns what a run takes by what it took before, by threads."""
    return [
        {"threads": n, "us": r.us, "ratio": r.median, "low": r.low, "high": r.high}
        for n, r in runs.items()
    ]


def _finite(x: float) -> float | None:
    return round(x, 1) if isfinite(x) else None


def tuning_table(found: TuningReport) -> Table:
    """Returns the table of what was searched, what takes most first."""
    from rutc.report.listing import Table

    titles = ("kernel", "launches", "trials", "default cycles", "best", "in the model", "")
    table = Table(*titles, names=("kernel", ""))
    shown = sorted(found.tuned, key=lambda t: -t.launches * min(t.default_cycles, 1e18))
    for t in shown:
        gain = t.default_cycles / t.best_cycles - 1 if isfinite(t.best_cycles) else 0.0
        inside = "" if t.us is None else f"{t.us[0]:.1f} -> {t.us[1]:.1f} us"
        verdict = "used" if t.believed else "not faster there" if t.us is not None else ""
        table.add(
            t.name,
            str(t.launches),
            str(t.trials),
            f"{t.default_cycles:.0f}" if isfinite(t.default_cycles) else "",
            f"+{100 * gain:.0f} %" if round(100 * gain) > 0 else "",
            inside,
            verdict,
        )
    return table


def plan_line(found: PlanFound) -> str:
    """Returns what is said of a plan."""
    if not found.runs and not found.tried:
        return "no other decision of the plan was tried: none is expected to be faster for sure"
    if not found.runs:
        return f"{counted(found.tried, 'other decision')} of the plan tried, none faster for sure"
    what = f"a plan with {counted(len(found.steps), 'other decision')}, of {found.tried} tried,"
    if not found.taken:
        n, run = max(found.runs.items(), key=lambda x: x[1].high)
        return (
            f"{what} is not faster for sure on {counted(n, 'thread')} "
            f"({run.low:.3f} to {run.high:.3f} of the usual time)"
        )
    return f"{what} is {runs_text(found.runs)}: rutc compile takes it"


def runs_text(runs: Mapping[int, Ratio]) -> str:
    """Returns how fast runs are by what they were, on each number of threads."""
    return ", ".join(
        f"{1 / r.median:.2f} times as fast ({1 / r.high:.2f} to {1 / r.low:.2f}) "
        f"on {counted(n, 'thread')}"
        for n, r in runs.items()
    )


def tuning_lines(found: TuningReport) -> list[str]:
    """Returns what is said below the table."""
    from rutc.driver.tuning.schedule_search import FEWEST_NS

    failed = f", {found.failed} of them failed" if found.failed else ""
    failed += f" ({found.errors[0]})" if found.errors else ""
    at = f" at {found.sizes}" if found.sizes else ""
    lines = [f"timed in runs of the model on one thread, by its processor time{at}"]
    if found.plan is not None:
        lines.append(plan_line(found.plan))
    if found.no_plans:
        lines.append(f"plans were not searched: {found.no_plans}")
    if found.lacked:
        lines.append(
            "no schedules were tried: a first round, and to confirm what it finds, would take "
            f"{found.lacked:.0f} s as busy as this machine is, and fewer were left: give more "
            "--time, or --no-plans to leave the plan as it is"
        )
    if not found.tuned and not found.interrupted:
        least = f"{FEWEST_NS / 1000:g} us"
        lines.append(f"no kernel was searched that takes {least} or more and has other schedules")
    lines.append(
        f"{counted(found.trials, 'trial')} in {found.seconds:.0f} s{failed}; "
        f"kept in {found.database}"
    )
    tried = sum(t.us is not None for t in found.tuned)
    if found.runs:
        used = sum(t.believed for t in found.tuned)
        lines.append(
            f"with the schedules of {counted(used, 'kernel')}, of {tried} that were faster "
            f"one by one, a run is {runs_text(found.runs)}: rutc compile takes them"
        )
    elif tried:
        lines.append(
            f"a run is not faster for sure with any of the {tried} schedules that were faster one "
            "by one, so none is taken"
        )
    if found.interrupted:
        lines.append("interrupted: go on with the same command")
    return lines
