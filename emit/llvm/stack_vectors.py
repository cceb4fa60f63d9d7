"""How often machine code of x86 reads or writes vectors on the stack, told from its bytes.

A vector instruction begins with a prefix, C5, C4 or 62; its operand in memory, at a constant
distance from the stack pointer, is a byte ModRM that names no register (mod < 3) and says that a
byte SIB follows (rm = 4), and that one: 24, the stack pointer without an index [Intel SDM 2, 2.1.5
and 2.3]. Prefixes of three and four bytes hold, inverted, a bit that makes another register of the
base, which is therefore set here, and one of the index.
"""

from __future__ import annotations

import re

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


def stack_vectors(code: bytes) -> int:
    """Returns how many instructions on vectors have an operand on the stack.

    `vmovups %zmm0,0x40(%rsp)` -> 62 f1 7c 48 11 44 24 01: one
    """
    return sum(1 for _ in _ACCESS.finditer(code))
