"""What is kept of tuning: a task, where it was measured, and what a schedule took there.

A `Task` is a kernel to tune, an `Origin` a machine and a version of rutc on a day, a `Trial` one
schedule of the task that was tried there. They are what `database` stores; all texts are Unicode
that UTF-8 can hold. Every record has a `key`, the SHA-256 of what makes it distinct; whoever looks
something up by it compares the rest as well.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Literal, get_args

from rutc.base.record import record
from rutc.tensor_ir.machine import Machine

State = Literal["near", "far", "model"]
"""Whether operands lie in the caches before a run, or it is in the model that does what it does."""
Status = Literal["measured", "failed", "crashed", "timeout"]
STATES: tuple[State, ...] = get_args(State)
ALONE: tuple[State, ...] = ("near", "far")
"""Those of kernels that run by themselves."""
STATUSES: tuple[Status, ...] = get_args(Status)

Fact = str | int | float | tuple[str, ...]

Likeness = Callable[["Origin"], int | None]
"""How far an origin is from the one that is meant, 0 the nearest; None: it does not count."""


@record
class Origin:
    """Where and when something was measured.

    `cpu` is the name that the system gives, `processor` LLVM's (`znver3`); `features` are sorted;
    `machine` has the facts of the processor (`facts`); `date` is that of the day, in ISO's form.
    """

    cpu: str
    processor: str
    features: tuple[str, ...]
    machine: Mapping[str, Fact]
    version: str
    date: str

    def __post_init__(self) -> None:
        if self.features != tuple(sorted(set(self.features))):
            raise ValueError("features must be sorted, each there once")
        bad = [n for n, v in self.machine.items() if not isinstance(v, str | int | float | tuple)]
        if bad:
            raise ValueError(f"a machine's {bad[0]} is no fact: a text, a number or several texts")
        texts = (self.cpu, self.processor, *self.features, self.version, self.date)
        _check(*texts, plain_json(self.machine))

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """The digest of all of it."""
        texts = (self.cpu, self.processor, self.version, self.date)
        return digest(*texts, plain_json(self.features), plain_json(self.machine))


@record
class Task:
    """A kernel to tune: its text without names of its own, before its schedule, and for what.

    `constants` are the sorted names of the buffers that may be packed.
    """

    kernel: str
    constants: tuple[str, ...]
    target: str

    def __post_init__(self) -> None:
        if self.constants != tuple(sorted(set(self.constants))):
            raise ValueError("constants must be sorted, each there once")
        _check(self.kernel, *self.constants, self.target)

    @property
    def key(self) -> str:
        """The digest of all of it."""
        return digest(self.kernel, self.target, *self.constants)


@record
class Trial:
    """One schedule of a task that was tried on a machine.

    `schedule` is its text (`steps.text.print_schedule`), `template` the name of what made it.
    `low_ns` and `high_ns` are the ends of a confidence interval of the median, `reference_ns` is
    what a reference kernel took beside it; only what was measured has times. `summary` is JSON, the
    counts that a cost model learns from.
    """

    task: Task
    origin: Origin
    schedule: str
    template: str = ""
    threads: int = 1
    state: State = "near"
    status: Status = "measured"
    median_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    reference_ns: float | None = None
    error: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        if self.state not in STATES or self.status not in STATUSES:
            raise ValueError(f"there is no state {self.state!r}, or no status {self.status!r}")
        if not 1 <= self.threads < 1 << 31:
            raise ValueError(f"threads cannot be {self.threads}")
        times = (self.median_ns, self.low_ns, self.high_ns)
        if any((t is not None) != (self.status == "measured") for t in times):
            raise ValueError("what was measured has a median and an interval, other trials none")
        for time in (*times, self.reference_ns):
            if time is not None and not (math.isfinite(time) and time >= 0):
                raise ValueError(f"a time cannot be {time} ns")
        _check(self.schedule, self.template, self.error, self.summary)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """The digest of what tells it from other trials."""
        own = (self.schedule, str(self.threads), self.state)
        return digest(self.task.key, self.origin.key, *own)

    @property
    def interval_ns(self) -> float:
        """How wide the interval of the median is; without one it is endless."""
        if self.low_ns is None or self.high_ns is None:
            return math.inf
        return self.high_ns - self.low_ns


def digest(*texts: str) -> str:
    """The SHA-256 of some texts, in hexadecimal digits."""
    made = hashlib.sha256()
    for text in texts:
        data = text.encode()
        made.update(len(data).to_bytes(8, "little"))
        made.update(data)
    return made.hexdigest()


def facts(machine: Machine) -> Mapping[str, Fact]:
    """What was measured of a machine, or is known of it: all but the coefficients of decisions."""
    values = {f.name: getattr(machine, f.name) for f in fields(machine) if f.name != "coefficients"}
    return {**values, "features": tuple(sorted(machine.features))}


def like(origin: Origin, relevant: frozenset[str] | None = None) -> Likeness:
    """Tells how far others are from an origin: times of another one may serve here.

    0: the same processor by all names, 1: by that of LLVM, 2: another one that has the same
    features. With other features, of those that are `relevant` (None: all), it does not count.
    """

    def features(of: Origin) -> frozenset[str]:
        return frozenset(of.features) & (frozenset(of.features) if relevant is None else relevant)

    wanted = features(origin)

    def distance(other: Origin) -> int | None:
        if features(other) != wanted:
            return None
        if other.processor != origin.processor:
            return 2
        return int(other.cpu != origin.cpu)

    return distance


def plain_json(value: object) -> str:
    """The JSON of a value, the same whatever the order of its keys."""
    separators = (",", ":")
    return json.dumps(
        value, sort_keys=True, separators=separators, allow_nan=False, ensure_ascii=False
    )


def _check(*texts: str) -> None:
    """Raises ValueError for a text that UTF-8 cannot hold."""
    for text in texts:
        text.encode()
