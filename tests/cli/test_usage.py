"""How the command line explains itself, and what it says of arguments that it cannot read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.main import get_command

from rutc.cli import app
from tests.cli.conftest import Rutc

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = ["compile", "run", "verify", "bench", "inspect", "explain", "tune", "doctor", "cache"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(rutc: Rutc, command: str) -> None:
    assert command in rutc("--help").stdout
    result = rutc(command, "--help")
    assert result.status == 0
    assert "--json" in result.stdout


@pytest.mark.parametrize("command", [*COMMANDS, "db stats", "db export", "db import", "db merge"])
def test_every_command_takes_what_all_of_them_do(rutc: Rutc, command: str) -> None:
    shown = rutc(*command.split(), "--help").stdout
    assert all(option in shown for option in ("--quiet", "--json", "--debug"))


def test_options_stand_in_groups(rutc: Rutc) -> None:
    """No group is longer than a reader looks through, and those of all commands come last."""
    groups: list[tuple[str, int]] = []
    for line in rutc("compile", "--help").stdout.splitlines():
        if title := re.match(r"╭─ (.*?) ─", line):
            groups.append((title[1], 0))
        elif re.match(r"│ +--", line):
            groups[-1] = groups[-1][0], groups[-1][1] + 1
    assert sum(count for _, count in groups) >= 25
    assert max(count for _, count in groups) <= 6
    assert groups[-1] == ("Display", 3)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("compile", "MODEL.onnx"),
        ("compile a.onnx b.so", "b.so"),
        ("compile a.onnx --jobs x", "jobs"),
        ("compile a.onnx --jobs 0", "jobs"),
        ("compile a.onnx --output", "output"),
        ("compile a.onnx --loud", "--loud"),
        ("dont", "dont"),
    ],
)
def test_what_cannot_be_read_is_told(rutc: Rutc, words: str, told: str) -> None:
    result = rutc(*words.split())
    assert result.status == 2
    assert result.stdout == ""
    assert told in result.stderr


def test_commands_are_listed_as_they_are_needed(rutc: Rutc) -> None:
    shown = rutc("--help").stdout
    order = ["compile", "run", "verify", "bench", "inspect", "explain", "tune", "doctor", "cache"]
    places = [re.search(rf"│ {name} ", shown) for name in (*order, "db")]
    assert all(places)
    assert sorted(places, key=lambda p: p.start() if p else -1) == places


@pytest.mark.parametrize(
    "command",
    ["compile", "run", "verify", "bench", "inspect", "explain", "tune", "doctor", "cache"]
    + [f"db {name}" for name in ("stats", "export", "import", "merge")],
)
def test_help_names_what_options_take_in_its_own_words(rutc: Rutc, command: str) -> None:
    shown = rutc(*command.split(), "--help").stdout
    options = [line for line in shown.splitlines() if re.match(r"│ +--", line)]
    assert options
    assert not [line for line in options if re.search(r"<\w+", line)]


def test_help_tells_all_that_filtering_may_cost(rutc: Rutc) -> None:
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", rutc("compile", "--help").stdout).split())
    (said,) = re.findall(r"--exact-algorithms (.*?)docs/filtering", shown)
    assert all(word in said for word in ("round more", "overflow", "NaN"))


def _options(command: click.Command) -> Iterator[str]:
    """The options of a command and of those below it."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for below in getattr(command, "commands", {}).values():
        yield from _options(below)


def test_what_messages_advise_exists() -> None:
    """Every option that a sentence in the sources names is one of a command."""
    known = {"--help", *_options(get_command(app))}
    folders = ("base", "driver", "emit", "graph_opt", "importer", "report", "runtime", "verify")
    texts = [
        node.value
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    # What begins with an option and has no space is for another program.
    sentences = [text for text in texts if " " in text or not text.startswith("-")]
    option = r"(?<![\w-])--[a-z][a-z-]*[a-z]\b(?!-)"
    found = {name for text in sentences for name in re.findall(option, text)}
    assert len(found) > 15
    assert found <= known
