"""Running the code of a document: its Python blocks and its commands, in order.

    ```python     runs in one namespace that all Python blocks of the document share
    ```text       directly after it: what it prints, `...` standing for anything
    ```console    `$ rutc ...` runs the command line; the lines after it: what it prints

White space at line ends and its amount elsewhere do not matter.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path

from typer.testing import CliRunner

from rutc.cli import app

FLAGS = ELLIPSIS | NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line at which the text begins."""

    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    """The document's fenced blocks in order."""
    source = path.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)\n(.*?)^```", source, flags=re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], source.count("\n", 0, m.start(2)) + 1) for m in found]


def run_document(path: Path) -> int:
    """Runs the blocks in the current folder; the number of outputs that were compared."""
    namespace: dict[str, object] = {"__name__": "document"}
    compared = 0
    printed = ""
    for block in blocks(path):
        where = f"{path.name}:{block.line}"
        if block.language == "python":
            # Newlines before the code make a traceback name the document's line.
            source = "\n" * (block.line - 1) + block.text
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(source, str(path), "exec"), namespace)
            printed = out.getvalue()
        elif block.language == "text":
            compare(where, block.text, printed)
            compared += 1
        elif block.language == "console":
            for command, expected in _commands(block.text):
                program, *arguments = shlex.split(command)
                assert program == "rutc", f"{where}: {command}"
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == 0, f"{where}: {command}\n{result.stderr}"
                if expected:
                    compare(f"{where}: {command}", expected, result.stdout)
                    compared += 1
    return compared


def compare(where: str, expected: str, got: str) -> None:
    """Raises AssertionError where `got` does not match what the document says."""
    fits = OutputChecker().check_output(expected, got, FLAGS)
    assert fits, f"{where} says\n{expected}\nbut it is\n{got}"


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that follows it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected
