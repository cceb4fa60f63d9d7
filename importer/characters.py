"""Sets of characters as ranges of code points, and the classes that patterns name."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

Ranges = tuple[tuple[int, int], ...]
"""Ascending ranges (first, last) that do not touch."""

ALL: Ranges = ((0, sys.maxunicode),)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same set in ascending ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def inverted(ranges: Ranges) -> Ranges:
    """All other characters."""
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= sys.maxunicode:
        found.append((start, sys.maxunicode))
    return tuple(found)


@lru_cache
def _cases() -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Every character that has other cases, with them: those of equal simple case folding."""
    groups: dict[str, list[int]] = {}
    for c in range(sys.maxunicode + 1):
        char = chr(c)
        low, high = char.lower(), char.upper()
        if low != char or high != char:
            key = char.casefold() if len(char.casefold()) == 1 else low if len(low) == 1 else char
            groups.setdefault(key, []).append(c)
    return tuple((c, tuple(g)) for g in groups.values() for c in g if len(g) > 1)


def folded(ranges: Ranges) -> Ranges:
    """The set with all cases of its characters."""
    extra = [
        (other, other)
        for c, group in _cases()
        if any(low <= c <= high for low, high in ranges)
        for other in group
    ]
    return merged((*ranges, *extra))


@lru_cache
def unicode_class(name: str) -> Ranges | None:
    """A general category of Unicode (`L`, `Lu`, ..) or `Any`; None for any other name."""
    if name == "Any":
        return ALL
    wanted = [c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith(name)]
    if not wanted or len(name) not in (1, 2):
        return None
    return merged((c, c) for c in wanted)


def _chars(text: str) -> Ranges:
    """`"a-z_"` as ranges; a hyphen stands between the ends of a range only."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        if text[at + 1 : at + 2] == "-":
            found.append((ord(text[at]), ord(text[at + 2])))
            at += 3
        else:
            found.append((ord(text[at]), ord(text[at])))
            at += 1
    return merged(found)


_DIGITS, _WORDS, _SPACES = _chars("0-9"), _chars("0-9A-Za-z_"), _chars("\t\n\f\r ")
PERL: Mapping[str, Ranges] = {
    "d": _DIGITS,
    "D": inverted(_DIGITS),
    "s": _SPACES,
    "S": inverted(_SPACES),
    "w": _WORDS,
    "W": inverted(_WORDS),
}
"""The classes that a backslash and a letter name."""

POSIX: Mapping[str, Ranges] = {
    "alnum": _chars("0-9A-Za-z"),
    "alpha": _chars("A-Za-z"),
    "ascii": ((0, 127),),
    "blank": _chars("\t "),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGITS,
    "graph": ((33, 126),),
    "lower": _chars("a-z"),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": _chars("A-Z"),
    "word": _WORDS,
    "xdigit": _chars("0-9A-Fa-f"),
}
"""The classes that stand as `[:name:]` in brackets."""
