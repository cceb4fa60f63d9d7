"""The user's cache of models: things made once, safe under concurrent processes and crashes."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from rutc.errors import UserError

CACHE_VARIABLE = "RUTC_CACHE"


def cache_folder() -> Path:
    """Returns the folder of cached models: `$RUTC_CACHE/models`, or the user's cache directory."""
    chosen = os.environ.get(CACHE_VARIABLE)
    root = Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("rutc")
    return root / "models"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the exclusive lock of `path`, waiting for another process that has it.

    The lock is the kernel's, so it ends with its process; the lock file itself stays.
    """
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cached(relative: str, make: Callable[[Path], None]) -> Path:
    """Returns the cached file or folder `relative`, calling `make(path)` when it is not there yet.

    `make` writes to a temporary path which is then renamed, so a cached path is always complete;
    of several processes that ask at once, one makes it and the others wait.

    Raises:
        UserError: the cache folder cannot be written.
    """
    path = cache_folder() / relative
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent, prefix=".making-") as folder:
                    made = Path(folder) / path.name
                    make(made)
                    made.rename(path)
    except OSError as error:
        message = (
            f"cannot put {relative} into the model cache {cache_folder()}: {error}. "
            f"Free some space there, or name another folder in ${CACHE_VARIABLE}."
        )
        raise UserError(message) from error
    return path
