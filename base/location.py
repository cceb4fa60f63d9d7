"""Where the database of tuning records is: a file, or a server by its URL."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import platformdirs

from rutc.base.record import record

VARIABLE = "RUTC_DB"
FILE = "tuning.sqlite"


@record
class Location:
    """A file of SQLite, or the URL of another database; with neither, memory of this process."""

    path: Path | None
    url: str

    def __str__(self) -> str:
        """How it stands in messages: without a password."""
        if self.path is not None:
            text = str(self.path)
            return text if text.isprintable() else repr(text)
        hidden = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", self.url or "the memory")
        return re.sub(r"(password=)[^&]*", r"\1***", hidden)

    @property
    def there(self) -> bool:
        """Whether there may be a database: a server, or a file that is there."""
        return bool(self.url) if self.path is None else self.path.exists()

    def state(self) -> str | None:
        """What changes when its records do; None where only the database could tell."""
        if self.path is None:
            return None
        found = []
        for name in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            with suppress(OSError):
                status = name.stat()
                found.append(f"{name}:{status.st_size}:{status.st_mtime_ns}")
        return " ".join(found)


def located(given: str | Path | None = None) -> Location:
    """Returns where the database is.

    `given` is a path or a URL. None: `$RUTC_DB`, or else the file in the user's data directory.
    """
    text = str(given or os.environ.get(VARIABLE) or "")
    if not text:
        return Location(Path(platformdirs.user_data_dir("rutc")) / FILE, "")
    scheme, mark, rest = text.partition("://")
    if not mark:
        return Location(Path(text), "")
    if scheme.partition("+")[0] != "sqlite":
        return Location(None, text)
    # sqlite:///relative and sqlite:////absolute
    name = rest[1:]
    return Location(Path(name) if name not in ("", ":memory:") else None, "")
