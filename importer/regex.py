"""RE2's syntax of regular expressions: parsing, and the program that `tensor_ir.regex` describes.

    pattern := branch | branch            branch := piece*          piece := atom repeat*
    repeat  := * | + | ? | {n} | {n,} | {n,m}, each with an optional ?
    atom    := character | . | [class] | (pattern) | (?flags) | (?flags:pattern) | (?P<name>pattern)
             | escape

As only full and longest matches are asked for, greed and the numbers of groups have no meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rutc.base.record import record
from rutc.importer.characters import (
    ALL,
    PERL,
    POSIX,
    Ranges,
    folded,
    inverted,
    merged,
    unicode_class,
)
from rutc.tensor_ir.regex import (
    ANY,
    END,
    JUMP,
    LINE_BEGIN,
    LINE_END,
    MATCH,
    NO_WORD,
    SPLIT,
    TEST,
    TEXT_BEGIN,
    TEXT_END,
    WORD,
)

MOST_REPEATS = 1000
"""RE2's limit on the counts of a repetition."""
MOST_DIGITS = 10
"""A count of so many digits is too large."""
MOST_INSTRUCTIONS = 1 << 20
"""The longest program, in integers."""
MOST_DEPTH = 200
"""The deepest nesting of groups."""


class RegexError(ValueError):
    """A pattern is malformed, or uses what is not supported."""


@record
class _Flags:
    fold: bool = False
    many_lines: bool = False
    dot_all: bool = False


Code = tuple[tuple[int, ...], ...]
"""Instructions; the targets of SPLIT and JUMP are relative to their own place, in instructions."""


def program_of(pattern: str) -> list[int]:
    """The program of a pattern. Raises RegexError where it is none of RE2's."""
    parser = _Parser(pattern)
    code = (*parser.whole(), (MATCH,))
    places = [0]
    for instruction in code:
        places.append(places[-1] + len(instruction))
    if places[-1] > MOST_INSTRUCTIONS:
        raise RegexError("the pattern is too large")
    program: list[int] = []
    for i, (op, *operands) in enumerate(code):
        targets = [places[i + k] for k in operands] if op in (SPLIT, JUMP) else operands
        program += [op, *targets]
    return program


def _one(ranges: Ranges) -> Code:
    return ((ANY, *(n for pair in ranges for n in pair), END),)


def _either(a: Code, b: Code) -> Code:
    """SPLIT a b; a; JUMP end; b."""
    return ((SPLIT, 1, len(a) + 2), *a, (JUMP, len(b) + 1), *b)


def _any_of(branches: Sequence[Code]) -> Code:
    if len(branches) == 1:
        return branches[0]
    half = (len(branches) + 1) // 2
    return _either(_any_of(branches[:half]), _any_of(branches[half:]))


def _star(a: Code) -> Code:
    return ((SPLIT, 1, len(a) + 2), *a, (JUMP, -len(a) - 1))


def _maybe(a: Code) -> Code:
    return ((SPLIT, 1, len(a) + 1), *a)


def _repeated(a: Code, least: int, most: int | None) -> Code:
    if len(a) * max(least, most or 0) > MOST_INSTRUCTIONS:
        raise RegexError("the pattern is too large")
    if most is None:
        return (*(a * max(least - 1, 0)), *(a if least else ()), *_star(a))
    optional: Code = ()
    for _ in range(most - least):
        optional = _maybe((*a, *optional))
    return (*(a * least), *optional)


class _Parser:
    """A recursive descent over the pattern."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.flags = _Flags()
        self.depth = 0

    # -- characters -----------------------------------------------------------------------------
    def ahead(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def taken(self, text: str) -> bool:
        if not self.ahead(text):
            return False
        self.at += len(text)
        return True

    def next(self) -> str:
        if self.at == len(self.text):
            raise RegexError("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def until(self, end: str) -> str:
        stop = self.text.find(end, self.at)
        if stop < 0:
            raise RegexError(f"{end!r} is missing")
        found = self.text[self.at : stop]
        self.at = stop + len(end)
        return found

    # -- structure ------------------------------------------------------------------------------
    def whole(self) -> Code:
        code = self.alternatives()
        if self.at < len(self.text):
            raise RegexError(f"a ')' without '(' at character {self.at}")
        return code

    def alternatives(self) -> Code:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise RegexError("its groups are nested too deeply")
        branches = [self.branch()]
        while self.taken("|"):
            branches.append(self.branch())
        self.depth -= 1
        return _any_of(branches)

    def branch(self) -> Code:
        code: list[tuple[int, ...]] = []
        while self.at < len(self.text) and not self.ahead("|") and not self.ahead(")"):
            if self.taken("\\Q"):
                for atom in self.quoted():
                    code += atom
                continue
            start = self.at
            if self.repetition() is not None:
                raise RegexError(f"the repetition at character {start} has nothing to repeat")
            code += self.repeats(self.atom())
        return tuple(code)

    def quoted(self) -> list[Code]:
        stop = self.text.find("\\E", self.at)
        text = self.text[self.at :] if stop < 0 else self.text[self.at : stop]
        self.at += len(text) + (0 if stop < 0 else 2)
        atoms = [self.literal(ord(c)) for c in text]
        return [*atoms[:-1], self.repeats(atoms[-1])] if atoms else []

    def repeats(self, code: Code) -> Code:
        repeated = False
        while True:
            start = self.at
            bounds = self.repetition()
            if bounds is None:
                return code
            if repeated:
                raise RegexError(f"a repetition of a repetition at character {start}")
            repeated = True
            self.taken("?")
            code = _repeated(code, *bounds)

    def repetition(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.taken(mark):
                return bounds
        if not self.ahead("{"):
            return None
        stop = self.text.find("}", self.at)
        first, comma, last = self.text[self.at + 1 : max(stop, self.at + 1)].partition(",")
        if stop < 0 or not _is_number(first) or not (_is_number(last) or last == ""):
            return None
        self.at = stop + 1
        least = _count(first)
        most = least if not comma else _count(last) if last else None
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise RegexError(f"the repetition {{{first}{comma}{last}}} is not allowed")
        return least, most

    def atom(self) -> Code:
        c = self.next()
        match c:
            case ".":
                return _one(ALL if self.flags.dot_all else inverted(((10, 10),)))
            case "^":
                return ((TEST, LINE_BEGIN if self.flags.many_lines else TEXT_BEGIN),)
            case "$":
                return ((TEST, LINE_END if self.flags.many_lines else TEXT_END),)
            case "[":
                return _one(self.bracket())
            case "(":
                return self.group()
            case "\\":
                return self.escape()
            case _:
                return self.literal(ord(c))

    def literal(self, c: int) -> Code:
        single: Ranges = ((c, c),)
        return _one(folded(single) if self.flags.fold else single)

    def group(self) -> Code:
        outer = self.flags
        if self.taken("?"):
            if self.taken("P<") or self.taken("<"):
                name = self.until(">")
                if not name.isidentifier():
                    raise RegexError(f"{name!r} is no name of a group")
            elif not self.set_flags():
                return ()
        code = self.alternatives()
        if not self.taken(")"):
            raise RegexError("a ')' is missing")
        self.flags = outer
        return code

    def set_flags(self) -> bool:
        """Reads `flags-flags:` or `flags-flags)`; whether a group follows."""
        on = True
        while True:
            c = self.next()
            match c:
                case "i":
                    self.flags = replace(self.flags, fold=on)
                case "m":
                    self.flags = replace(self.flags, many_lines=on)
                case "s":
                    self.flags = replace(self.flags, dot_all=on)
                case "U":
                    pass
                case "-" if on:
                    on = False
                case ":":
                    return True
                case ")":
                    return False
                case _:
                    raise RegexError(f"'(?{c}' is not supported")

    # -- escapes and classes --------------------------------------------------------------------
    def escape(self) -> Code:
        tests = {"A": TEXT_BEGIN, "z": TEXT_END, "b": WORD, "B": NO_WORD}
        if self.at < len(self.text) and self.text[self.at] in tests:
            return ((TEST, tests[self.next()]),)
        if self.taken("C"):
            raise RegexError("\\C, a byte, is not supported: text is matched by characters")
        found = self.named_class()
        if found is not None:
            return _one(found)
        return self.literal(self.escaped())

    def named_class(self) -> Ranges | None:
        """The class after a backslash: `d`, `pL`, `p{Lu}`, ..; None where none stands there."""
        letter = self.text[self.at : self.at + 1]
        if letter in PERL and letter:
            self.at += 1
            return PERL[letter]
        if letter.lower() != "p":
            return None
        self.at += 1
        name = self.until("}") if self.taken("{") else self.next()
        negative = letter == "P"
        if name.startswith("^"):
            name, negative = name[1:], not negative
        found = unicode_class(name)
        if found is None:
            raise RegexError(f"the class of characters {name!r} is not supported")
        if self.flags.fold:
            found = folded(found)
        return inverted(found) if negative else found

    def escaped(self) -> int:
        """The character of an escape."""
        c = self.next()
        plain = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
        if c in plain:
            return plain[c]
        if c == "x":
            digits = self.until("}") if self.taken("{") else self.next() + self.next()
            return self.code(digits, 16)
        if c in "01234567":
            digits = c
            while len(digits) < 3 and self.text[self.at : self.at + 1] in set("01234567"):
                digits += self.next()
            if c != "0" and len(digits) == 1:
                raise RegexError(f"\\{c}: references to groups are not regular")
            return self.code(digits, 8)
        if c.isalnum() and c.isascii():
            raise RegexError(f"the escape \\{c} is unknown")
        return ord(c)

    def code(self, digits: str, base: int) -> int:
        try:
            found = int(digits, base)
        except ValueError as e:
            raise RegexError(f"{digits!r} is no number of a character") from e
        if not 0 <= found <= 0x10FFFF:
            raise RegexError(f"{digits!r} is no number of a character")
        return found

    def bracket(self) -> Ranges:
        negative = self.taken("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self.ahead("]"):
            first = False
            ranges += self.member()
        self.at += 1
        found = merged(ranges)
        if self.flags.fold:
            found = folded(found)
        return inverted(found) if negative else found

    def member(self) -> Ranges:
        if self.taken("[:"):
            name = self.until(":]")
            found = POSIX.get(name.lstrip("^"))
            if found is None:
                raise RegexError(f"the class of characters [:{name}:] is unknown")
            return inverted(found) if name.startswith("^") else found
        if self.ahead("\\"):
            self.at += 1
            found = self.named_class()
            if found is not None:
                return found
            self.at -= 1
        low = self.single()
        if self.ahead("-") and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            high = self.single()
            if high < low:
                raise RegexError("a range of characters ends before it begins")
            return ((low, high),)
        return ((low, low),)

    def single(self) -> int:
        return self.escaped() if self.taken("\\") else ord(self.next())


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _count(digits: str) -> int:
    """A count of repetitions; one more than is allowed for any larger one."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < MOST_DIGITS else MOST_REPEATS + 1
