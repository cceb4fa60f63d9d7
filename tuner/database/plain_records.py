"""Records of what names and values say, as a line of a file or a row of a table has them.

Nothing is taken on trust: what has another type, or is no record by its own rules, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rutc.tuner.database.trial import Fact, Origin, State, Status, Task, Trial

NUMBERS = ("median_ns", "low_ns", "high_ns", "reference_ns")
TEXTS = ("schedule", "template", "state", "status", "error", "summary")


class WrongError(ValueError):
    """What is said is no record."""


def task_of(data: Mapping[str, object]) -> Task:
    """The task that data says. Raises ValueError where they say none."""
    return Task(text(data, "kernel"), texts(data, "constants"), text(data, "target"))


def origin_of(data: Mapping[str, object]) -> Origin:
    """The origin that data says. Raises ValueError where they say none."""
    machine = mapping(data.get("machine"), "machine")
    facts = {n: tuple(map(str, v)) if isinstance(v, list) else v for n, v in machine.items()}
    return Origin(
        text(data, "cpu"),
        text(data, "processor"),
        texts(data, "features"),
        cast("Mapping[str, Fact]", facts),
        text(data, "version"),
        text(data, "date"),
    )


def trial_of(data: Mapping[str, object], task: Task, origin: Origin) -> Trial:
    """The trial that data says, of a task and an origin. Raises ValueError where they say none."""
    schedule, template, state, status, error, summary = (text(data, n) for n in TEXTS)
    median, low, high, reference = (time(data, name) for name in NUMBERS)
    return Trial(
        task,
        origin,
        schedule,
        template,
        whole(data, "threads"),
        cast("State", state),
        cast("Status", status),
        median,
        low,
        high,
        reference,
        error,
        summary,
    )


def mapping(value: object, name: str) -> Mapping[str, object]:
    """An object of names and values. Raises WrongError for anything else."""
    if not isinstance(value, dict):
        raise WrongError(f"{name} is no object of names and values")
    return value


def text(data: Mapping[str, object], name: str) -> str:
    """A text of a name. Raises WrongError for anything else."""
    value = data.get(name)
    if not isinstance(value, str):
        raise WrongError(f"{name} is no text")
    return value


def texts(data: Mapping[str, object], name: str) -> tuple[str, ...]:
    """The texts of a list of a name. Raises WrongError for anything else."""
    value = data.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise WrongError(f"{name} is no list of texts")
    return tuple(value)


def whole(data: Mapping[str, object], name: str) -> int:
    """A whole number of a name. Raises WrongError for anything else."""
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongError(f"{name} is no whole number")
    return value


def time(data: Mapping[str, object], name: str) -> float | None:
    """A number of a name; None where there is none. Raises WrongError for anything else."""
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongError(f"{name} is no number")
    return float(value)
