"""The command line, called in this process."""

import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass

from rutc.cli import app


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it wrote."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Mapping[str, object]:
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value


def rutc(*arguments: object) -> Outcome:
    """`rutc("compile", path)`: what the command answers."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app.run([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
    return Outcome(status, out.getvalue(), err.getvalue())
