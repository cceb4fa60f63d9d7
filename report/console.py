"""What the command line shows: progress, tables and errors on stderr, results on stdout.

A `Screen` is the frame of every command: it turns errors into one message and an exit status.
What only some commands show is imported when they do: a small model compiles in little more time
than that takes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

import rutc
from rutc.base import interrupts
from rutc.base.progress import Progress, nobody
from rutc.errors import TOO_DEEP, InternalError, RutcError, UserError
from rutc.report.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

INTERRUPTED = 130
INTERRUPTION = "interrupted; nothing half-written is left"
UNREAD = 141
"""The status of a program that SIGPIPE ends: nobody reads what it writes."""
REFUSALS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM),
)
"""What the machine's state is to blame for."""
FILE_WIDTH = 160
"""Columns of a table that does not go to a terminal."""

Json = Mapping[str, object]


class Screen:
    """Where one command shows what it does.

    `as_json` leaves stdout to the one JSON result; a `quiet` screen shows no progress, and one to
    `debug` the tracebacks of errors.
    """

    def __init__(self, *, as_json: bool, quiet: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.debug = debug

    @contextlib.contextmanager
    def framed(self) -> Iterator[None]:
        """Frames a command: errors become one message and the exit status of the contract.

        0 done; 1 a check failed; 2 the user's input is at fault; 3 a bug of rutc; 130 interrupted,
        141 nobody reads stdout.
        """
        try:
            yield
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            raise self.fail(INTERRUPTION, INTERRUPTED) from None
        except Exception as error:
            ending = interrupts.ending()
            if isinstance(ending, KeyboardInterrupt):
                raise self.fail(INTERRUPTION, INTERRUPTED) from None
            if ending is not None:
                raise ending from None
            raise _failed(self, error) from error

    def note(self, text: str) -> None:
        """Shows a line on stderr, where that can be written."""
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def result(self, payload: Json, *shown: RenderableType) -> None:
        """Shows the command's result on stdout: `payload` as JSON, or else what is `shown`.

        Raises:
            typer.Exit: nobody reads it.
            UserError: it cannot be written.
        """
        with _stdout():
            if self.as_json:
                print(_json(payload))
                return
            for item in shown:
                if isinstance(item, str):
                    print(printable(item))
                else:
                    _draw(item)

    def fail(self, message: str, status: int, details: Json | None = None) -> typer.Exit:
        """Shows an error on stderr (and as JSON on stdout); returns the exit to raise."""
        message = printable(message)
        with contextlib.suppress(OSError):
            typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        self.note(message)
        if self.as_json:
            error = {"error": message, "exit_status": status, **(details or {})}
            with contextlib.suppress(UserError, typer.Exit), _stdout():
                print(_json(error))
        return typer.Exit(status)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress]:
        """Shows the stages of what runs inside it: live on a terminal, a line each elsewhere."""
        if self.quiet:
            yield nobody
            return
        if not sys.stderr.isatty():
            yield _line_per_stage(self.note)
            return
        from rich.console import Console

        from rutc.report.bars import bar

        console = Console(stderr=True, highlight=False)
        if console.is_dumb_terminal:
            yield _line_per_stage(self.note)
            return
        with bar(console) as report:
            yield report


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Lets the command run whatever its caller made of the standard streams.

    In the place of closed ones no other file opens, and what they cannot show is escaped. Inside
    anything may be written to stdout, such as the help: what cannot be ends the process, also
    where stdout is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free. What may only be read refuses what is written to it,
            # as what is closed does.
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open as long as the process runs
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    screen = Screen(as_json=False)
    try:
        with _stdout():
            try:
                yield
            finally:
                sys.stdout.flush()
    except UserError as error:
        sys.exit(screen.fail(str(error), UserError.exit_status).exit_code)
    except typer.Exit as ending:
        sys.exit(ending.exit_code)
    except SystemExit as ending:
        # What draws the help, and what is no command, ends the process itself, with status 1, where
        # nobody reads it. The latter is drawn on stderr, while it is handled: it stays what it is.
        unread = ending.__context__
        if isinstance(unread, BrokenPipeError):
            sys.exit(UNREAD if unread.__context__ is None else UserError.exit_status)
        raise
    except KeyboardInterrupt:
        sys.exit(screen.fail(INTERRUPTION, INTERRUPTED).exit_code)
    finally:
        try:
            sys.stderr.flush()
        except OSError:
            _drop(sys.stderr)


@contextlib.contextmanager
def _stdout() -> Iterator[None]:
    """A block that writes to stdout, all of which has reached it at its end.

    Raises:
        typer.Exit: nobody reads it.
        UserError: it cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        _drop(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(UNREAD) from None
        raise UserError(f"cannot write to stdout: {error.strerror or error}") from error


def _drop(stream: TextIO) -> None:
    """Lets a stream that cannot be written lead nowhere: what it still holds is dropped."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _draw(item: RenderableType) -> None:
    from rutc.report.listing import draw

    draw(item, None if sys.stdout.isatty() else FILE_WIDTH)


def _line_per_stage(show: Callable[[str], None]) -> Progress:
    begun: dict[str, float] = {}
    shown: set[str] = set()

    def report(stage: str, done: int, total: int) -> None:
        begin = begun.setdefault(stage, time.perf_counter())
        if done == total and stage not in shown:
            shown.add(stage)
            show(f"{stage}: {total}/{total} in {time.perf_counter() - begin:.2f} s")

    return report


def survived(error: Exception, *, debug: bool) -> str:
    """Returns what an error says that does not end the command.

    Raises:
        BaseException: a signal ends the command, of which the error is a consequence.
    """
    ending = interrupts.ending()
    if ending is not None:
        raise ending from error
    if debug:
        traceback.print_exception(error)
    return str(error) if _is_told(error) else f"{type(error).__name__}: {error}"


def _failed(screen: Screen, error: Exception) -> typer.Exit:
    if isinstance(error, OSError) and error.errno in REFUSALS:
        about = f"{error.filename}: " if error.filename else ""
        return screen.fail(f"{about}{error.strerror}", UserError.exit_status)
    if isinstance(error, MemoryError):
        text = f"this machine has not enough memory ({error}); give or fix smaller sizes"
        return screen.fail(text, UserError.exit_status)
    if isinstance(error, RecursionError):
        return screen.fail(TOO_DEEP, UserError.exit_status)
    if not _is_told(error):
        return _bug(screen, error)
    if screen.debug:
        traceback.print_exc()
    status = error.exit_status if isinstance(error, RutcError) else UserError.exit_status
    return screen.fail(str(error), status)


def _is_told(error: Exception) -> bool:
    """Whether an error is written for the user."""
    from rutc.runtime import ModelError

    return isinstance(error, RutcError | ModelError) and not isinstance(error, InternalError)


def _bug(screen: Screen, error: Exception) -> typer.Exit:
    kind = "" if isinstance(error, InternalError) else f"{type(error).__name__}: "
    what = f"this is a bug of rutc: {kind}{error}"
    if screen.debug:
        traceback.print_exc()
        return screen.fail(f"{what}\nPlease report it with the traceback above.", 3)
    try:
        path = _crash_report(error)
    except OSError:
        traceback.print_exception(error)
        return screen.fail(f"{what}\nPlease report it with the traceback above.", 3)
    return screen.fail(
        f"{what}\nPlease report it with the file {path} and, if you may share it, the model.", 3
    )


def _crash_report(error: Exception) -> Path:
    """Returns a file with the versions, the command line and the traceback."""
    text = "\n".join(
        [
            f"rutc {rutc.__version__}, Python {platform.python_version()}, {platform.platform()}",
            f"command: {' '.join(sys.argv)}",
            "",
            *traceback.format_exception(error),
        ]
    )
    descriptor, name = tempfile.mkstemp(prefix="rutc-crash-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


def _json(payload: Json) -> str:
    """The text of a result."""
    return json.dumps(_plain(payload), indent=1, allow_nan=False)


def _plain(value: object) -> object:
    """Returns what JSON can hold in place of a value: of numbers that are not finite the name."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Enum():
            return _plain(value.value)
    # Numbers of numpy are what Python's are; what else there is, as a formula of sizes, is a text.
    return _plain(value.item()) if hasattr(value, "item") else str(value)
