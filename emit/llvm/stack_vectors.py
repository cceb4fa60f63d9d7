"""How often innermost loops read or write vectors on the stack, told from machine code of x86.

A vector instruction begins with a prefix, C5, C4 or 62; its operand in memory, at a constant
distance from the stack pointer, is a byte ModRM that names no register (mod < 3) and says that a
byte SIB follows (rm = 4), and that one: 24, the stack pointer without an index [Intel SDM 2, 2.1.5
and 2.3]. Prefixes of three and four bytes hold, inverted, a bit that makes another register of the
base, which is therefore set here, and one of the index.

A loop is from where a jump leads back to, up to the jump. Innermost ones begin at whole cache
lines, in an object file, too, which tells most of them from others, and from numbers that look
like jumps.
"""

from __future__ import annotations

import re

LOOP_BYTES = 64
"""Innermost loops begin at a multiple of so many bytes."""

_SHORT = rb"\xc5.."
_LONG = rb"\xc4[\x60-\x7f\xe0-\xff].."
_LONGEST = rb"\x62[\x60-\x7f\xe0-\xff]..."
_MEMORY = (
    rb"[\x04\x0c\x14\x1c\x24\x2c\x34\x3c\x44\x4c\x54\x5c"
    rb"\x64\x6c\x74\x7c\x84\x8c\x94\x9c\xa4\xac\xb4\xbc]"
)
_ACCESS = re.compile(
    b"(?:" + b"|".join((_SHORT, _LONG, _LONGEST)) + b")" + _MEMORY + rb"\x24", re.DOTALL
)
_BACK = re.compile(
    rb"(?=(?:\x0f[\x80-\x8f]|\xe9)(..\xff\xff)|[\x70-\x7f\xeb]([\x80-\xff]))", re.DOTALL
)
"""A jump back: what it adds to where it ends, in four bytes or in one."""


def stack_vectors(code: bytes) -> int:
    """Returns how many instructions on vectors in innermost loops have an operand on the stack.

    `vmovups %zmm0,0x40(%rsp)` -> 62 f1 7c 48 11 44 24 01: one, where a later jump leads before it
    """
    accesses = [access.start() for access in _ACCESS.finditer(code)]
    if not accesses:
        return 0
    loops = _loops(code)
    return sum(1 for at in accesses if any(begin <= at < end for begin, end in loops))


def _loops(code: bytes) -> list[tuple[int, int]]:
    """Returns where innermost loops begin and end."""
    ends: dict[int, int] = {}
    for jump in _BACK.finditer(code):
        group = 1 if jump[1] else 2
        end = jump.end(group)
        begin = end + int.from_bytes(jump[group], "little", signed=True)
        if begin >= 0 and begin % LOOP_BYTES == 0:
            ends[begin] = end
    return list(ends.items())
