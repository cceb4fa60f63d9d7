"""Random numbers.

`uniform` comes from Philox 4x32-10 [Salmon et al. 2011], a counter-based generator: the numbers
are a function of the `seed`, of how often the session has made this call before, and of the
element's position. So sessions are reproducible, their runs differ, and no order matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from rutc.tensor_ir.interpreter.routines.job import Job

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
LONG_BITS = 53
"""Of a number of two words."""
SHORT_BITS = 31
"""The most of a number of one word."""
AT_ONCE = 64
"""Blocks whose words follow each other where a number is of one."""
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(seed: int, draws: int, blocks: int) -> np.ndarray:
    """{blocks, 4} words of 32 bits: block b is the counter (b, draws) under the key `seed`."""
    b = np.arange(blocks, dtype=np.uint64)
    d = np.uint64(draws)
    x = [b & _LOW, b >> _HALF, np.full_like(b, d & _LOW), np.full_like(b, d >> _HALF)]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        p0, p1 = x[0] * _M0, x[2] * _M1
        x = [
            (p1 >> _HALF) ^ x[1] ^ np.uint64(key[0]),
            p1 & _LOW,
            (p0 >> _HALF) ^ x[3] ^ np.uint64(key[1]),
            p0 & _LOW,
        ]
        key = [(key[0] + _W0) & 0xFFFFFFFF, (key[1] + _W1) & 0xFFFFFFFF]
    return np.stack(x, axis=1)


def uniform(job: Job) -> Sequence[np.ndarray]:
    """f64 numbers, uniform in [0, 1). Attributes: `seed`, and their `bits`, 53 or at most 31.

    Those of 53 bits are of two words each. Of the others the first are of word 0 of `AT_ONCE`
    blocks, then of word 1 of these, and so on.
    """
    shape = job.results[0].shape
    count, few = prod(shape), job.integer("bits", LONG_BITS)
    if few <= SHORT_BITS:
        groups = -(-count // (4 * AT_ONCE))
        words = philox(job.integer("seed"), job.draws, groups * AT_ONCE)
        words = words.reshape(groups, AT_ONCE, 4).swapaxes(1, 2).reshape(-1)[:count]
        return (((words >> np.uint64(32 - few)) * 2.0**-few).reshape(shape),)
    words = philox(job.integer("seed"), job.draws, -(-count // 2)).reshape(-1, 2)
    bits = (words[:count, 0] >> np.uint64(5)) * np.uint64(1 << 26)
    bits += words[:count, 1] >> np.uint64(6)
    return ((bits.astype(np.float64) * 2.0**-53).reshape(shape),)


def numpy_uniform(job: Job) -> Sequence[np.ndarray]:
    """f64 numbers as `numpy.random.seed(seed); numpy.random.uniform(size=shape)` makes them.

    Attribute: `seed`, of 32 bits. The generator is MT19937 [Matsumoto & Nishimura 1998].
    """
    generator = np.random.RandomState(job.integer("seed"))
    return (generator.uniform(size=job.results[0].shape),)
