"""Tuning records as a file: lines of JSON, compressed with gzip.

    {"rutc": "tuning records", "format": 2}
    {"task": {"kernel": .., "constants": [..], "target": ..}}
    {"origin": {"cpu": .., "processor": .., "features": [..], "machine": {..}, ..}}
    {"trial": {"origin": 0, "schedule": .., "threads": 1, "state": "near", ..}}

A trial is of the last task before it, and of the origin of that number; both come right before they
are needed first. Equal records make equal bytes. In format 1 trials have a "packing" beside the
schedule, `{"w": [["k"], [["k", 4]]]}`, of which steps are made.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO, cast

from rutc.errors import UserError
from rutc.tuner.database.older import digest_before, with_default, with_packs
from rutc.tuner.database.plain_records import (
    NUMBERS,
    TEXTS,
    WrongError,
    mapping,
    origin_of,
    task_of,
    text,
    trial_of,
    whole,
)
from rutc.tuner.database.trial import Origin, Task, Trial, digest, plain_json

FORMAT = 2
HEADER = {"rutc": "tuning records", "format": FORMAT}
LONGEST = 1 << 26
"""Bytes of a line."""
GZIP = b"\x1f\x8b"

Source = Callable[[], Iterator[Trial]]
"""Yields trials, each time from the first."""


def write(file: BinaryIO, groups: Iterable[list[Trial]]) -> int:
    """Writes trials into a file; those of a group have one task. Returns how many they are."""
    count = 0
    origins: dict[Origin, int] = {}
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as packed:

        def line(value: Mapping[str, object]) -> None:
            packed.write(f"{plain_json(value)}\n".encode())

        line(HEADER)
        for group in groups:
            for task in dict.fromkeys(trial.task for trial in group):
                line({"task": _plain_task(task)})
            for trial in group:
                if trial.origin not in origins:
                    origins[trial.origin] = len(origins)
                    line({"origin": _plain_origin(trial.origin)})
                line({"trial": _plain_trial(trial, origins[trial.origin])})
            count += len(group)
    return count


def read(path: Path) -> Iterator[Trial]:
    """Yields the trials of a file, compressed or not.

    Raises:
        UserError: it cannot be read, or it is no such file.
    """
    reader = _Reader()
    held: list[Trial] = []
    try:
        with _opened(path) as file:
            while line := file.readline(LONGEST + 1):
                trial = reader.read(line)
                if trial is not None and reader.format == FORMAT:
                    yield trial
                elif trial is not None:
                    held.append(trial)
            reader.end()
            # What stands for default schedules is told of those that come, the last one too.
            for trial in held:
                yield replace(trial, summary=with_default(trial.summary, reader.digests))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _unread(path, f"it is damaged or cut off ({error})") from error
    except OSError as error:
        raise _unread(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        where = f"line {max(reader.lines, 1)} is no tuning record"
        raise _unread(path, f"{where}: {error}") from error


def _unread(path: Path, why: str) -> UserError:
    return UserError(
        f"cannot import {path}: {why}. `rutc db export FILE` writes such files; nothing of it was "
        "stored"
    )


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    return cast("IO[bytes]", gzip.open(path)) if packed else path.open("rb")


class _Reader:
    """What was read so far."""

    def __init__(self) -> None:
        self.lines = 0
        self.format = FORMAT
        self.digests: dict[str, str] = {}
        self.task: Task | None = None
        self.origins: list[Origin] = []

    def read(self, line: bytes) -> Trial | None:
        """The trial of a line; None if it is about something else."""
        self.lines += 1
        if len(line) > LONGEST:
            raise WrongError("it is too long")
        data = mapping(json.loads(line), "it")
        if self.lines == 1:
            self.format = _format(data)
            return None
        ((kind, value),) = data.items() if len(data) == 1 else [("", None)]
        match kind:
            case "task":
                self.task = task_of(mapping(value, kind))
            case "origin":
                self.origins.append(origin_of(mapping(value, kind)))
            case "trial":
                return self._trial(mapping(value, kind))
            case _:
                raise WrongError("it has neither a task, an origin nor a trial")
        return None

    def end(self) -> None:
        """Looks whether there was a line at all."""
        if self.lines == 0:
            raise WrongError("the file is empty")

    def _trial(self, data: Mapping[str, object]) -> Trial:
        number = whole(data, "origin")
        if self.task is None or not 0 <= number < len(self.origins):
            raise WrongError("the task or the origin of the trial does not come before it")
        if self.format == 1:
            schedule = text(data, "schedule")
            before = digest_before(schedule, data.get("packing"))
            schedule = with_packs(schedule, data.get("packing"))
            self.digests[before] = digest(schedule)
            data = {**data, "schedule": schedule}
        return trial_of(data, self.task, self.origins[number])


def _format(line: Mapping[str, object]) -> int:
    version = line.get("format")
    if line.get("rutc") != HEADER["rutc"] or not isinstance(version, int):
        raise WrongError("the file does not begin as an export does")
    if version > FORMAT:
        raise WrongError(f"it has format {version}, of a newer rutc: update rutc")
    return version


def _plain_task(task: Task) -> Mapping[str, object]:
    return {"kernel": task.kernel, "constants": task.constants, "target": task.target}


def _plain_origin(origin: Origin) -> Mapping[str, object]:
    return {
        "cpu": origin.cpu,
        "processor": origin.processor,
        "features": origin.features,
        "machine": dict(origin.machine),
        "version": origin.version,
        "date": origin.date,
    }


def _plain_trial(trial: Trial, origin: int) -> Mapping[str, object]:
    return {
        "origin": origin,
        "threads": trial.threads,
        **{name: getattr(trial, name) for name in (*TEXTS, *NUMBERS)},
    }
