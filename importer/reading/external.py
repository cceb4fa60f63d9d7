"""Files of tensor data beside a model.

They must lie inside the model's folder: no absolute path, no `..`, no symbolic or hard link.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from rutc.errors import UserError

FileState = tuple[int, int, int]
"""Size, time of change in ns and inode: different after a file was written to or replaced."""


def state_of(path: Path) -> FileState:
    """The state of a file."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


class ModelFolder:
    """The folder that a model's external data lies in."""

    def __init__(self, path: Path) -> None:
        """Take the folder, of which no file is used yet."""
        self.path = path
        self.used: dict[str, FileState] = {}
        """The files that were asked for, and their states when they were."""
        self.model: np.ndarray | None = None
        """The bytes of the model itself, once it is read."""
        self.kept: list[np.ndarray] = []
        """The elements of tensors whose protobufs hold a place in this list only."""

    def file(self, location: str, name: str) -> Path:
        """The file of a tensor's data. Raises UserError where it may not be used."""

        def refuse(why: str) -> UserError:
            return UserError(f"tensor {name!r}: external data {location!r} is refused: {why}")

        relative = PurePosixPath(location)
        if not location or "\0" in location:
            raise refuse("it names no file")
        if relative.is_absolute() or PureWindowsPath(location).is_absolute():
            raise refuse("the path is absolute; it must lie in the model's directory")
        if ".." in relative.parts or "\\" in location:
            raise refuse("the path leaves the model's directory")
        path = self.path
        try:
            for part in relative.parts:
                path = path / part
                if path.is_symlink():
                    raise refuse("it is a symbolic link")
            if not path.exists():
                raise UserError(f"tensor {name!r}: its external data file {location!r} is missing")
            if not path.is_file():
                raise refuse("it is not a regular file")
            if os.stat(path).st_nlink > 1:
                raise refuse("it is a hard link")
        except OSError as e:
            raise refuse(e.strerror or "it cannot be looked at") from e
        self.used.setdefault(location, state_of(path))
        return path
