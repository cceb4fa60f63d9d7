"""The blocks of numbers that registers for matrices (AMX) hold, and what one instruction does.

A block of sums has 16 rows and 16 columns of 32 bits at most. An instruction adds products of 64
bytes of a row, at most, and as many of a column to each; as many as fill 32 bits lie together in
both operands. [Intel SDM 1, 18]
"""

from __future__ import annotations

REGISTERS = 8
ROWS = 16
"""Rows of a register."""
COLUMNS = 16
"""Sums in a row of a register."""
ROW_BYTES = 64
"""Of the factors of a row, whose products one instruction adds to a sum."""
GROUP_BYTES = 4
"""Of those that have to be neighbours in both operands."""


def operand_registers(sums: int) -> tuple[int, int]:
    """How many registers blocks of (rows, columns) of operands have beside so many sums."""
    free = max(REGISTERS - sums, 0)
    return free // 2, free - free // 2


def products_at_a_time(extent: int, size: int) -> list[int]:
    """How many of so many products an instruction may do, of factors of `size` bytes, most first.

    They are divisors that fill half a row of registers: others are not worth the loads.
    """
    group, longest = GROUP_BYTES // size, ROW_BYTES // size
    lengths = range(longest, longest // 2 - 1, -group)
    return [n for n in lengths if extent > 0 and extent % n == 0]


def with_zeros(extent: int, size: int) -> int:
    """The products of whole instructions that so many of them are with zeros; 0 if too few."""
    group, longest = GROUP_BYTES // size, ROW_BYTES // size
    if extent < longest // 2:
        return 0
    step = group if extent < longest else longest
    return -(-extent // step) * step
