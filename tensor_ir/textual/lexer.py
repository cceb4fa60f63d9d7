"""Tokens of the text form, and the error that points into a text."""

from __future__ import annotations

import json
import re
from enum import Enum, unique

from rutc.base.record import record
from rutc.errors import UserError


class ParseError(UserError):
    """A text that is no graph; the message names line and column and shows the line."""


@unique
class Kind(Enum):
    """The kinds of tokens; the value describes one in a message."""

    NUMBER = "a number"
    WORD = "a name"
    QUOTED = "a quoted name"
    VALUE = "a value"
    LOCAL = "a local"
    STRING = "a string"
    MARK = "a mark"
    NEWLINE = "the end of the line"
    END = "the end of the text"


@record
class Token:
    """A token: `text` is a name, a string or a value's name without quotes and signs."""

    kind: Kind
    text: str
    offset: int

    def __str__(self) -> str:
        plain = self.kind in (Kind.NEWLINE, Kind.END)
        return self.kind.value if plain else repr(self.text)


_PATTERN = re.compile(
    r"""
      (?P<SKIP>    [ \t\r]+ | \#[^\n]* )
    | (?P<NEWLINE> \n )
    | (?P<NUMBER>  \d+ (?:\.\d+)? (?:[eE][+-]?\d+)? )
    | (?P<WORD>    [A-Za-z_][A-Za-z0-9_.]* )
    | (?P<QUOTED>  '(?:[^'\\\n]|\\.)*' )
    | (?P<VALUE>   %(?:"(?:[^"\\\n]|\\.)*"|[A-Za-z0-9_.]+) )
    | (?P<LOCAL>   \$[A-Za-z0-9_]+ )
    | (?P<STRING>  "(?:[^"\\\n]|\\.)*" )
    | (?P<MARK>    -> | // | << | >> | <= | >= | == | != | \.\. | [-+*/%<>=()\[\]{},:&|^@] )
    """,
    re.VERBOSE | re.ASCII,
)


def tokenize(text: str) -> list[Token]:
    """The tokens of `text`; line ends after a comma or inside () or [] are left out.

    Raises:
        ParseError: A character that begins no token.
    """
    tokens: list[Token] = []
    depth = 0
    at = 0
    while at < len(text):
        match = _PATTERN.match(text, at)
        if match is None or match.lastgroup is None:
            raise error(text, at, f"{text[at]!r} begins nothing that a graph may hold")
        found = match.group()
        if match.lastgroup == "NEWLINE":
            previous = tokens[-1] if tokens else None
            continued = depth > 0 or (previous is not None and previous.text == ",")
            if previous is not None and previous.kind is not Kind.NEWLINE and not continued:
                tokens.append(Token(Kind.NEWLINE, "\n", at))
        elif match.lastgroup != "SKIP":
            kind = Kind[match.lastgroup]
            depth += (found in ("(", "[")) - (found in (")", "]"))
            tokens.append(Token(kind, _content(kind, found, text, at), at))
        at = match.end()
    tokens.append(Token(Kind.END, "", len(text)))
    return tokens


def error(text: str, offset: int, message: str) -> ParseError:
    """The error `message` at a place of `text`."""
    line = text.count("\n", 0, offset) + 1
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    shown = text[start : end if end >= 0 else len(text)]
    column = offset - start + 1
    pointer = " " * (column - 1) + "^"
    return ParseError(f"line {line}, column {column}: {message}\n  {shown}\n  {pointer}")


def _content(kind: Kind, found: str, text: str, at: int) -> str:
    if kind is Kind.QUOTED:
        return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], found[1:-1])
    if kind is Kind.LOCAL:
        return found[1:]
    quoted = found[1:] if kind is Kind.VALUE else found
    if kind not in (Kind.STRING, Kind.VALUE) or not quoted.startswith('"'):
        return quoted
    try:
        content = json.loads(quoted)
    except json.JSONDecodeError as e:
        raise error(text, at, f"a malformed string: {e.msg}") from e
    return str(content)
