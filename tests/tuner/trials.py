"""Trials to store: made by number, or drawn; and functions that are called in other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from rutc.tuner.database.trial import STATES, STATUSES, Origin, Task, Trial

T = TypeVar("T")
FORK = multiprocessing.get_context("fork")
NOBODY = 65534

ORIGIN = Origin(
    "AMD EPYC 7B13",
    "znver3",
    ("avx2", "fma"),
    {"l1": 32768, "fma_per_cycle": 2.0, "features": ("avx2", "fma"), "name": "x86-64-v3"},
    "0.1",
    "2026-11-25",
)
TASK = Task("for y in 16:\n  z[y] = x[y] * w[y]", ("w",), "x86-64-v3")


def trial(
    number: int, median: float = 100.0, width: float = 10.0, task: Task = TASK, **more: object
) -> Trial:
    """A trial that was measured, of a schedule of its own for each number."""
    values: dict[str, object] = {
        "task": task,
        "origin": ORIGIN,
        "schedule": f"pack(w, [k, n], [[n, 16], [k, 4]]); split(y, {number + 1})",
        "template": "tiled",
        "median_ns": median,
        "low_ns": median - width / 2,
        "high_ns": median + width / 2,
        "reference_ns": 50.0,
        "summary": '{"products":16}',
        **more,
    }
    if values.get("status", "measured") != "measured":
        values |= {"median_ns": None, "low_ns": None, "high_ns": None, "reference_ns": None}
    return Trial(**values)  # type: ignore[arg-type]


_texts = st.text(max_size=20)
_times = st.floats(0, 1e15)
_tasks = st.builds(
    Task, _texts, st.lists(_texts, max_size=3).map(lambda x: tuple(sorted(set(x)))), _texts
)
_facts = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts
_origins = st.builds(
    Origin,
    _texts,
    _texts,
    st.lists(_texts, max_size=3).map(lambda x: tuple(sorted(set(x)))),
    st.dictionaries(_texts, _facts | st.lists(_texts, max_size=2).map(tuple), max_size=3),
    _texts,
    _texts,
)


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    """Any trial."""
    status = draw(st.sampled_from(STATUSES))
    low, median, high = sorted(draw(st.tuples(_times, _times, _times)))
    times = (median, low, high) if status == "measured" else (None, None, None)
    return Trial(
        draw(_tasks),
        draw(_origins),
        draw(_texts),
        draw(_texts),
        draw(st.integers(1, 1 << 20)),
        draw(st.sampled_from(STATES)),
        status,
        *times,
        reference_ns=draw(st.none() | _times),
        error=draw(_texts),
        summary=draw(_texts),
    )


def elsewhere(work: Callable[[], T], user: int | None = None) -> T:
    """What a function returns in a forked process, perhaps of another user; raises what it does."""
    receiver, sender = FORK.Pipe(duplex=False)

    def run() -> None:
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        try:
            answer: object = (True, work())
        except Exception as error:
            answer = (False, error)
        sender.send_bytes(pickle.dumps(answer))

    process = FORK.Process(target=run)
    process.start()
    sender.close()
    try:
        good, value = pickle.loads(receiver.recv_bytes())
    finally:
        process.join()
    if not good:
        raise value
    return value  # type: ignore[no-any-return]
