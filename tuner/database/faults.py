"""What goes wrong with a database: which faults pass by themselves, and how others are told."""

from __future__ import annotations

import sqlite3
import zlib

from sqlalchemy.exc import DBAPIError, IntegrityError

from rutc.errors import UserError


class DamagedError(Exception):
    """What stands in a table is not what rutc writes there."""


Fault = DBAPIError | sqlite3.Error | zlib.error | DamagedError
FAULTS = (DBAPIError, sqlite3.Error, zlib.error, DamagedError)

NO_SPACE = "there is no space left, or what holds it failed. Free some, or use another database"
NO_RIGHT = "it may not be written, or its folder may not. Get the right to, or use another database"
DAMAGED = "it is damaged. Take a copy of it, or import an export into a new one"
BUSY = "others have been writing to it for too long. Wait for them to end, and try again"
NO_DATABASE = "it is no database of SQLite. Name another file"

REACHED = (
    "its server cannot be reached, or refuses. Look whether it runs, and whether the URL's host, "
    "database, user and password are right"
)

SQLITE = {
    sqlite3.SQLITE_BUSY: BUSY,
    sqlite3.SQLITE_LOCKED: BUSY,
    sqlite3.SQLITE_PROTOCOL: BUSY,
    sqlite3.SQLITE_FULL: NO_SPACE,
    sqlite3.SQLITE_IOERR: NO_SPACE,
    sqlite3.SQLITE_READONLY: NO_RIGHT,
    sqlite3.SQLITE_PERM: NO_RIGHT,
    sqlite3.SQLITE_AUTH: NO_RIGHT,
    sqlite3.SQLITE_CANTOPEN: NO_RIGHT,
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: NO_DATABASE,
}
"""What to say of SQLite's primary result codes."""

SERVER = {
    "08": REACHED,
    "28": "its server refuses this user. Look at the name and the password in the URL",
    "3D": "its server has no such database. Make one there (`createdb`), or name another",
    "25006": "it may only be read. Use another one to write to",
    "42501": f"{NO_RIGHT} for this user",
    "40": BUSY,
    "53": "its server has no space, memory or connection left. Free some, and try again",
    "55P03": BUSY,
    "57": "its server is being shut down, or has ended what was asked. Try again when it runs",
}
"""What to say of the states that SQL calls so, or that begin so."""

PASSING_STATES = ("40001", "40P01", "55P03", "42P07", "42710")
"""Two transactions met, of which one has to begin again; 42..: both made the tables."""
PASSING_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
CONNECTING = "OperationalError"


def told(error: Fault, where: str) -> Exception:
    """Returns what to raise: a UserError, or the fault itself where rutc is to blame."""
    origin = _origin(error)
    if isinstance(origin, zlib.error | DamagedError):
        return UserError(f"cannot use {where}: {DAMAGED} ({origin})")
    code, state = _code(origin), _state(origin)
    why = SQLITE.get(code & 0xFF) if code is not None else None
    if state is not None:
        why = next((w for s, w in SERVER.items() if state.startswith(s)), None)
    elif code is None and type(origin).__name__ == CONNECTING:
        # Drivers know no state of a connection that there never was.
        why = REACHED
    if why is None:
        return error
    said = (str(origin).strip().splitlines() or [type(origin).__name__])[0]
    return UserError(f"cannot use the database {where}: {why} ({said})")


def passes(error: Fault) -> bool:
    """Whether the same may work a moment later: others were writing."""
    origin = _origin(error)
    code, state = _code(origin), _state(origin)
    if code is not None:
        return code & 0xFF in PASSING_CODES
    return state in PASSING_STATES


def collides(error: Fault) -> bool:
    """Whether another transaction has added the same rows meanwhile."""
    return isinstance(error, IntegrityError)


def _origin(error: Fault) -> BaseException:
    """What the driver raised."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error


def _code(error: BaseException) -> int | None:
    """The code that SQLite gave."""
    found = getattr(error, "sqlite_errorcode", None)
    return found if isinstance(found, int) else None


def _state(error: BaseException) -> str | None:
    """The state that a server gave."""
    found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return found if isinstance(found, str) else None
