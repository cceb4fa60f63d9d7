"""Transposing in registers: vectors across memory from loads along it.

A square of `lanes` rows is transposed by interleaving neighbours inside of 16-byte blocks, and
then by exchanging whole blocks: about log2(lanes) shuffles a vector, each of one operation on
AVX2 and AVX-512, where a gather takes one load for every lane.
"""

from __future__ import annotations

from rutc.emit.llvm import ir

BLOCK_BYTES = 16


def transposable(lanes: int, element_bytes: int) -> bool:
    """Whether `transposed` handles vectors of so many lanes: half a block, or 1, 2 or 4 blocks.

    The elements of a block number at least two, those of half a block four.
    """
    if 2 * lanes * element_bytes == BLOCK_BYTES:
        return lanes >= 4
    return lanes * element_bytes in (16, 32, 64) and element_bytes in (1, 2, 4, 8)


def is_whole(lanes: int, element_bytes: int) -> bool:
    """Whether vectors of so many lanes, of any number of registers, are whole blocks."""
    return lanes * element_bytes % BLOCK_BYTES == 0


def interleaved(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Element k of each row in turn, then k + 1 of each; the rows are a power of two."""
    lanes, half = rows[0].lanes, len(rows) // 2
    low = [i // 2 + (lanes if i % 2 else 0) for i in range(lanes)]
    high = [i + lanes // 2 for i in low]
    for _ in range(half.bit_length()):
        rows = [
            b.shuffled(rows[i], picks, rows[i + half]) for i in range(half) for picks in (low, high)
        ]
    return rows


def transposed(b: ir.IRBuilder, rows: list[ir.Value], element_bytes: int) -> list[ir.Value]:
    """The columns of a square: `rows` are as many vectors as one has lanes."""
    lanes = len(rows)
    inner = BLOCK_BYTES // element_bytes
    if inner == 2 * lanes:
        return _halves(b, rows)
    blocks = lanes // inner
    # Inside of blocks: afterwards vector k of group g holds, in block c, column c*inner + k of
    # the rows of group g.
    groups = [_within(b, rows[g * inner : (g + 1) * inner]) for g in range(blocks)]
    columns: list[ir.Value | None] = [None] * lanes
    for k in range(inner):
        for c, column in enumerate(_exchanged(b, [group[k] for group in groups], inner)):
            columns[c * inner + k] = column
    return [c for c in columns if c is not None]


def _halves(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """The columns of a square whose rows are half a block: perfect shuffles, two rows a block."""
    lanes = len(rows)
    low = [i // 2 + (lanes if i % 2 else 0) for i in range(2 * lanes)]
    pairs = [b.shuffled(rows[i], low, rows[i + lanes // 2]) for i in range(lanes // 2)]
    low = [i // 2 + (2 * lanes if i % 2 else 0) for i in range(2 * lanes)]
    high = [i + lanes for i in low]
    for _ in range(lanes.bit_length() - 2):
        half = len(pairs) // 2
        pairs = [
            b.shuffled(pairs[i], picks, pairs[i + half])
            for i in range(half)
            for picks in (low, high)
        ]
    halves = (list(range(lanes)), list(range(lanes, 2 * lanes)))
    return [b.shuffled(p, picks, p) for p in pairs for picks in halves]


def _within(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Every block of the rows transposed: perfect shuffles of rows until all are interleaved."""
    inner = len(rows)
    lanes = rows[0].lanes
    low = [
        c + i // 2 + (lanes if i % 2 else 0) for c in range(0, lanes, inner) for i in range(inner)
    ]
    high = [i + inner // 2 for i in low]
    rounds = inner.bit_length() - 1
    for _ in range(rounds):
        half = inner // 2
        rows = [
            b.shuffled(rows[i], picks, rows[i + half]) for i in range(half) for picks in (low, high)
        ]
    return rows


def _exchanged(b: ir.IRBuilder, rows: list[ir.Value], inner: int) -> list[ir.Value]:
    """Vector c of the result is block c of every row, in order."""
    match len(rows):
        case 1:
            return rows
        case 2:
            return [_blocks(b, rows[0], rows[1], [c, 2 + c], inner) for c in range(2)]
        case _:
            even = [0, 2, 4, 6]
            odd = [1, 3, 5, 7]
            p, q = (_blocks(b, rows[0], rows[1], x, inner) for x in (even, odd))
            r, s = (_blocks(b, rows[2], rows[3], x, inner) for x in (even, odd))
            return [
                _blocks(b, p, r, even, inner),
                _blocks(b, q, s, even, inner),
                _blocks(b, p, r, odd, inner),
                _blocks(b, q, s, odd, inner),
            ]


def _blocks(b: ir.IRBuilder, x: ir.Value, y: ir.Value, picks: list[int], inner: int) -> ir.Value:
    return b.shuffled(x, [p * inner + i for p in picks for i in range(inner)], y)
