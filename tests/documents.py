"""Running the code of a document: its Python blocks and its commands, in order.

    ```python     runs in one namespace that all Python blocks of the document share
    ```text       directly after it: what it prints, `...` standing for anything
    ```console    `$ rutc ...` is run by a shell; the lines after it: what it prints

White space at line ends and its amount elsewhere do not matter.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path

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
            for command, expected in commands(block.text):
                result = in_shell(command)
                assert result.returncode == 0, f"{where}: {command}\n{result.stderr}"
                if expected:
                    compare(f"{where}: {command}", expected, result.stdout)
                    compared += 1
    return compared


def in_shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a command that finds rutc and this Python, in the current folder."""
    with tempfile.TemporaryDirectory() as folder:
        python = shlex.quote(sys.executable)
        for name, call in (("rutc", f"{python} -m rutc"), ("python", python), ("python3", python)):
            program = Path(folder) / name
            program.write_text(f'#!/bin/sh\nexec {call} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-c", command],
            env={**os.environ, "PATH": path, "RUTC_DB": "records.sqlite", **environment},
            capture_output=True,
            text=True,
            check=False,
        )


def compare(where: str, expected: str, got: str) -> None:
    """Raises AssertionError where `got` does not match what the document says."""
    fits = OutputChecker().check_output(expected, got, FLAGS)
    assert fits, f"{where} says\n{expected}\nbut it is\n{got}"


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that follows it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected
