"""How arguments are read: in any order, with clear answers to what cannot be read."""

from pathlib import Path
from typing import Annotated

import pytest

from rutc.commands import App, Argument, Option
from tests.cli.conftest import Rutc

app = App("tool", "Does nothing.", "1.2")
calls: list[dict[str, object]] = []


@app.command("do")
def do_command(
    source: Annotated[Path, Argument("SOURCE", "What to read.")],
    target: Annotated[Path | None, Argument("[TARGET]", "What to write.")] = None,
    some_flag: Annotated[bool, Option(help="Whether.")] = False,
    count: Annotated[int | None, Option(help="How often.", least=1)] = None,
    share: Annotated[float, Option("-s", "--share", help="How much.", least=0.5)] = 1.0,
    names: Annotated[list[str] | None, Option("--name", metavar="N", help="A name.")] = None,
) -> None:
    """Do nothing.

    Really.
    """
    calls.append(dict(locals()))


DEFAULTS: dict[str, object] = {
    "source": Path("a"),
    "target": None,
    "some_flag": False,
    "count": None,
    "share": 1.0,
    "names": None,
}


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("a", {}),
        ("a b", {"target": Path("b")}),
        ("a --count 3 b", {"target": Path("b"), "count": 3}),
        ("--count=3 a --some-flag b", {"target": Path("b"), "count": 3, "some_flag": True}),
        ("-s 0.5 a", {"share": 0.5}),
        ("a --name x --name y=-1", {"names": ["x", "y=-1"]}),
    ],
)
def test_arguments_become_parameters(words: str, given: dict[str, object]) -> None:
    calls.clear()
    app.run(["do", *words.split()])
    assert calls == [DEFAULTS | given]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("do", "SOURCE"),
        ("do a b c", "c"),
        ("do a --count x", "--count: invalid int value: 'x'"),
        ("do a --count 0", "--count: 0 is less than 1"),
        ("do a --share nan", "--share"),
        ("do a --shar 1", "--shar"),
        ("do a --count", "--count"),
        ("dont", "there is no command dont"),
        ("--loud", "there is no option --loud"),
    ],
)
def test_what_cannot_be_read_is_told(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.clear()
    with pytest.raises(SystemExit) as end:
        app.run(words.split())
    assert end.value.code == 2
    assert calls == []
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error: " in shown.err
    assert told in shown.err


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("--version", None, ["tool 1.2"]),
        ("--help", 0, ["Does nothing.", "do  Do nothing."]),
        ("", 2, ["Does nothing.", "do  Do nothing."]),
        ("do --help", 0, ["Do nothing.", "SOURCE", "--name N", "How often."]),
    ],
)
def test_help_and_version(
    words: str, status: int | None, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        app.run(words.split())
    assert end.value.code == status
    shown = capsys.readouterr().out
    for part in told:
        assert part in shown


@pytest.mark.parametrize(
    "command", ["compile", "run", "verify", "bench", "inspect", "explain", "doctor", "cache"]
)
def test_every_command_explains_itself(rutc: Rutc, command: str) -> None:
    assert command in rutc("--help").stdout
    result = rutc(command, "--help")
    assert result.status == 0
    assert "--json" in result.stdout
