"""Commands that are declared as functions: `--name` for each parameter with a default.

    @app.command()
    def run(
        library: Annotated[Path, Argument("OUT.so", "What to run.")],
        threads: Annotated[int | None, Option(help="Threads of a run.", least=1)] = None,
    ) -> None:
        ...

is `run OUT.so [--threads N]`. A bool is a flag, `list[T] | None` an option that may be repeated;
`Path | None` without an `Option` is an argument that may be left out.

Only the parser of the command that is called is made: others cost nothing.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import NoReturn, get_args, get_origin

from rutc.record import record

USAGE_ERROR = 2
"""The exit status where the arguments are at fault."""

Function = Callable[..., None]
Convert = Callable[[str], object]


@record
class Argument:
    """A positional argument."""

    metavar: str
    help: str


class Option:
    """An option: its flags if they are not `--name`, and the least number that it may be."""

    def __init__(
        self, *flags: str, help: str, metavar: str | None = None, least: float | None = None
    ) -> None:
        self.flags = flags
        self.help = help
        self.metavar = metavar
        self.least = least


@dataclass
class App:
    """A program of several commands."""

    name: str
    help: str
    version: str
    commands: dict[str, Function] = field(default_factory=dict)

    def command(self, name: str | None = None) -> Callable[[Function], Function]:
        """Makes a function a command, by its own name if it is given no other."""

        def register(function: Function) -> Function:
            self.commands[name or function.__name__] = function
            return function

        return register

    def run(self, arguments: Sequence[str]) -> None:
        """Calls the command that the arguments name.

        Raises:
            SystemExit: the arguments are at fault, or ask for help or the version.
        """
        name, *rest = arguments or ["--help"]
        if name in ("-h", "--help"):
            print(self._help())
            raise SystemExit(0 if arguments else USAGE_ERROR)
        if name == "--version":
            print(f"{self.name} {self.version}")
            raise SystemExit
        if name not in self.commands:
            what = "option" if name.startswith("-") else "command"
            print(f"{self._help()}\n\nerror: there is no {what} {name}", file=sys.stderr)
            raise SystemExit(USAGE_ERROR)
        function = self.commands[name]
        values = _parser(f"{self.name} {name}", function).parse_intermixed_args(rest)
        function(**vars(values))

    def _help(self) -> str:
        width = max(map(len, self.commands))
        listed = [f"  {n:<{width}}  {_summary(f)}" for n, f in self.commands.items()]
        usage = f"usage: {self.name} [--help] [--version] COMMAND ..."
        return "\n".join([usage, "", self.help, "", *listed])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.format_usage()}error: {message}\n")


def _summary(function: Function) -> str:
    return (function.__doc__ or "").partition("\n")[0]


def _parser(program: str, function: Function) -> argparse.ArgumentParser:
    """The parser of a command's arguments, whose results are the function's parameters."""
    parser = _Parser(program, description=_summary(function), allow_abbrev=False)
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind, how = get_args(parameter.annotation)
        default = parameter.default
        if isinstance(how, Argument):
            nargs = None if default is parameter.empty else "?"
            convert = _convert(_plain(kind), None)
            parser.add_argument(name, metavar=how.metavar, help=how.help, nargs=nargs, type=convert)
            continue
        flags = how.flags or (f"--{name.replace('_', '-')}",)
        if kind is bool:
            parser.add_argument(*flags, dest=name, action="store_true", help=how.help)
            continue
        plain = _plain(kind)
        repeated = get_origin(plain) is list
        convert = _convert(get_args(plain)[0] if repeated else plain, how.least)
        parser.add_argument(
            *flags,
            dest=name,
            action="append" if repeated else "store",
            type=convert,
            default=default,
            metavar=how.metavar or name.upper(),
            help=how.help,
        )
    return parser


def _plain(kind: object) -> object:
    """`T | None` -> T."""
    others = [part for part in get_args(kind) if part is not NoneType]
    return others[0] if NoneType in get_args(kind) else kind


def _convert(kind: object, least: float | None) -> Convert:
    """What makes a value of a word."""
    assert isinstance(kind, type)

    def convert(word: str) -> object:
        value: object = kind(word)
        if least is not None and isinstance(value, int | float) and not value >= least:
            raise argparse.ArgumentTypeError(f"{word} is less than {least:g}")
        return value

    # argparse shows it where the conversion fails: "invalid int value".
    convert.__name__ = kind.__name__
    return convert
