"""Progress on a terminal: one line that says the stage, its steps, and how long it took and takes.

    ⠙ kernels ━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━ 39/96 0:12, 0:17 left

The line is as wide as the terminal and never wraps: narrow ones show less. It is drawn when it is
told something, without a thread, as the compiler forks only where there are none. At the end it is
gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

from rich import progress
from rich.console import Console
from rich.table import Column

from rutc.base.progress import Progress
from rutc.base.record import record

SHORT_COLUMNS = 60
"""Narrower terminals have no room for a bar."""
NARROW_COLUMNS = 36
"""Narrower ones have none for how long it takes, either."""
REDRAW_S = 0.1
"""The line is not drawn more often, but for a new stage."""
SURE_S = 1.0
"""Of how much work is left, earlier than this nothing is said."""
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
"""What turns while there is progress."""


@record
class Shown:
    """What the line says beside the stage: a count, times, and the share of it that is done."""

    count: str
    times: str
    share: float


class Watch:
    """What is told of the work, as text. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begins now."""
        self.clock = clock
        self.begin = clock()
        self.stage = ""
        self.stage_begin = self.begin
        self.first = 0

    def look(self, stage: str, done: int, total: int) -> Shown:
        """What to show when a stage has got so far."""
        now = self.clock()
        if stage != self.stage:
            # What is done at once, as kernels of the cache, says nothing about the others.
            self.stage, self.stage_begin, self.first = stage, now, done
        times = _minutes(now - self.begin)
        if total < 2:
            return Shown("", times, 0.0)
        spent, made = now - self.stage_begin, done - self.first
        if made > 0 and spent >= SURE_S and done < total:
            times += f", {_minutes(spent / made * (total - done))} left"
        return Shown(f"{done}/{total}", times, done / total)


@contextmanager
def bar(console: Console, clock: Callable[[], float] = time.perf_counter) -> Iterator[Progress]:
    """Gives what is to be told of the work's progress while its line is on the terminal."""
    wide = console.width >= SHORT_COLUMNS
    columns: list[progress.ProgressColumn] = [_text("{task.fields[frame]}{task.description}")]
    if wide:
        columns.append(progress.BarColumn(None, table_column=Column(ratio=1)))
    columns.append(_text("{task.fields[count]}"))
    if console.width >= NARROW_COLUMNS:
        columns.append(_text("{task.fields[times]}"))
    watch = Watch(clock)
    with progress.Progress(
        *columns, console=console, transient=True, auto_refresh=False, expand=wide
    ) as line:
        task = line.add_task("", total=1.0, frame="", count="", times="")
        drawn = -REDRAW_S
        frames = cycle(FRAMES)

        def report(stage: str, done: int, total: int) -> None:
            nonlocal drawn
            new = stage != watch.stage
            shown = watch.look(stage, done, total)
            now = clock()
            if not new and now - drawn < REDRAW_S and done < total:
                return
            drawn = now
            line.update(
                task,
                description=stage,
                completed=shown.share,
                frame=f"{next(frames)} ",
                count=shown.count,
                times=shown.times,
                refresh=True,
            )

        yield report


def _text(form: str) -> progress.TextColumn:
    """A column of text that is cut off rather than wrapped."""
    return progress.TextColumn(form, table_column=Column(no_wrap=True, overflow="ellipsis"))


def _minutes(seconds: float) -> str:
    """Seconds as minutes and seconds, or hours, minutes and seconds."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    if hours:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{rest // 60}:{rest % 60:02}"
