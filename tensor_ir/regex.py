"""Regular expressions as programs of a nondeterministic machine [Thompson 1968].

    program := instruction*              a state is the number of an instruction
    ANY lo hi ... -1                     a character in one of the ranges; to the next instruction
    SPLIT a b | JUMP a                   to both, or to another
    TEST kind                            only where an assertion holds; to the next instruction
    MATCH                                accepts, if the text ends here

A program is a list of integers: for each instruction its code, its operands, and for ANY an end
mark. All states advance together, one character at a time, so a text of n characters takes
O(n * program) steps whatever the pattern is.
"""

from __future__ import annotations

from collections.abc import Sequence

ANY, SPLIT, JUMP, TEST, MATCH = range(5)
"""The codes of instructions."""

TEXT_BEGIN, TEXT_END, LINE_BEGIN, LINE_END, WORD, NO_WORD = range(6)
"""The assertions of TEST."""

END = -1
"""Ends the ranges of an ANY."""


def full_match(program: Sequence[int], text: str) -> bool:
    """Whether the whole text matches."""
    codes = [ord(c) for c in text]
    states = _closure(program, [0], codes, 0)
    for i, c in enumerate(codes):
        following = [n for s in states if program[s] == ANY for n in _moved(program, s, c)]
        states = _closure(program, following, codes, i + 1)
        if not states:
            return False
    return any(program[s] == MATCH for s in states)


def tokens(programs: Sequence[int], text: str, *, least: int, between: bool) -> list[str]:
    """What the first program matches, or what is between its matches, cut by the others in turn.

    Each program follows its length. Of matches at one place the longest counts; what has fewer
    than `least` characters is left out, and the search goes on one character on.
    """
    found = [text]
    while programs:
        program, programs = programs[1 : 1 + programs[0]], programs[1 + programs[0] :]
        found = [t for one in found for t in _cut(program, one, least=least, between=between)]
    return found


def _cut(program: Sequence[int], text: str, *, least: int, between: bool) -> list[str]:
    """What one program makes of a text."""
    codes = [ord(c) for c in text]
    found: list[str] = []
    at = 0
    while at <= len(text):
        match = _first_match(program, codes, at)
        if match is None and not between:
            break
        begin, end = match or (len(text), len(text))
        token = text[at:begin] if between else text[begin:end]
        taken = len(token) >= max(least, 1)
        if taken:
            found.append(token)
        if match is None:
            break
        at = end if (end > begin if between else taken) else begin + 1
    return found


def _first_match(program: Sequence[int], codes: Sequence[int], at: int) -> tuple[int, int] | None:
    """(begin, end) of the longest match at the first place that has one."""
    for begin in range(at, len(codes) + 1):
        states, last = _closure(program, [0], codes, begin), -1
        for i in range(begin, len(codes) + 1):
            if any(program[s] == MATCH for s in states):
                last = i
            if i == len(codes) or not states:
                break
            following = [
                n for s in states if program[s] == ANY for n in _moved(program, s, codes[i])
            ]
            states = _closure(program, following, codes, i + 1)
        if last >= 0:
            return begin, last
    return None


def _moved(program: Sequence[int], state: int, c: int) -> list[int]:
    """The state after reading `c`, if the instruction takes it."""
    at, hit = state + 1, False
    while program[at] != END:
        hit = hit or program[at] <= c <= program[at + 1]
        at += 2
    return [at + 1] if hit else []


def _closure(
    program: Sequence[int], states: Sequence[int], codes: Sequence[int], at: int
) -> list[int]:
    """The states that wait for a character or accept, reachable without reading one."""
    waiting: list[int] = []
    seen: set[int] = set()
    left = list(reversed(states))
    while left:
        s = left.pop()
        if s in seen:
            continue
        seen.add(s)
        match program[s]:
            case 1:
                left += [program[s + 2], program[s + 1]]
            case 2:
                left.append(program[s + 1])
            case 3:
                if _holds(program[s + 1], codes, at):
                    left.append(s + 2)
            case _:
                waiting.append(s)
    return waiting


def _is_word(c: int) -> bool:
    return 48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122 or c == 95


def _holds(kind: int, codes: Sequence[int], at: int) -> bool:
    before = codes[at - 1] if at else -1
    after = codes[at] if at < len(codes) else -1
    word = _is_word(before) != _is_word(after)
    return {
        TEXT_BEGIN: before < 0,
        TEXT_END: after < 0,
        LINE_BEGIN: before < 0 or before == 10,
        LINE_END: after < 0 or after == 10,
        WORD: word,
        NO_WORD: not word,
    }[kind]
