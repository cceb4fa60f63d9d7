"""Ranges of integers, and the value that a size in one commonly has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self

Range = tuple[int, int]
"""An inclusive range (lowest, highest) of an integer variable."""

MOST_SIZE = 1 << 31
"""No size that nothing fixes may be larger."""
COMMON_SIZE = 128
"""No symbol is thought to be larger where costs are weighed, unless its range asks for it."""
SOME = 8
"""Iterations of a loop whose number varies that a schedule has in mind at least.

A tile of eight rows does a single one at 0.94 times the speed of a tile of one, while tiles of one
row do eight at 0.4 times the speed of a tile of eight (products with 512 x 2048 and 128 x 128
elements on Zen 4).
"""


class CommonRange(Range):
    """A range of a size of which is known what it mostly is.

    It differs from the plain range: what is planned for the two differs.
    """

    common: int

    def __new__(cls, low: int, high: int, common: int) -> Self:
        """The range low..high, and a value in it."""
        made = super().__new__(cls, (low, high))
        made.common = common
        return made

    def __reduce__(self) -> tuple[type[CommonRange], tuple[int, int, int]]:
        return CommonRange, (*self, self.common)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommonRange) and (*self, self.common) == (*other, other.common)

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Ranges are hashed far more often than there are two that differ in this alone.
    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return range_text(self)


def with_common(limits: Range, common: int | None) -> Range:
    """A range whose common size is the value in it that is nearest to `common`, if one is given."""
    low, high = limits
    return limits if common is None else CommonRange(low, high, min(max(common, low), high))


def common_size(limits: Range) -> int:
    """The value that a size in a range is taken to have where costs are weighed.

    Without one of its own that is `COMMON_SIZE` in 1..512, and half of the largest size in 1..64:
    32.
    """
    if isinstance(limits, CommonRange):
        return limits.common
    low, high = limits
    return max(COMMON_SIZE if high >= COMMON_SIZE else (high + 1) // 2, low)


def without_common(symbols: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges as if nothing said what sizes commonly are."""
    return {name: (low, high) for name, (low, high) in symbols.items()}


def with_some(symbols: Mapping[str, Range], some: int = SOME) -> dict[str, Range]:
    """The ranges as if it was said of no size that it commonly is less than `some`."""
    return {
        name: with_common(limits, max(limits.common, some))
        if isinstance(limits, CommonRange)
        else limits
        for name, limits in symbols.items()
    }


def common_sizes(symbols: Mapping[str, Range]) -> dict[str, int]:
    """The common sizes of symbols."""
    return {name: common_size(limits) for name, limits in symbols.items()}


def few_sizes(symbols: Mapping[str, Range]) -> dict[str, int]:
    """The least sizes that a run may well have: where it was said what is common, that is it."""
    return {
        name: limits.common if isinstance(limits, CommonRange) else max(limits[0], 1)
        for name, limits in symbols.items()
    }


def midway(symbols: Mapping[str, Range]) -> dict[str, int]:
    """The sizes midway from common ones to the least, as factors."""
    return {
        name: round((max(common_size(limits), 1) * max(limits[0], 1)) ** 0.5)
        for name, limits in symbols.items()
    }


def range_text(limits: Range, step: int = 1) -> str:
    """A range as text: `1..64`, or `32..640/32@64` in steps and with a common size of its own."""
    low, high = limits
    common = f"@{limits.common}" if isinstance(limits, CommonRange) else ""
    return f"{stepped(f'{low}..{high}', step)}{common}"


def stepped(name: str, step: int) -> str:
    """The symbol of a size that is a multiple of a step: `height/16`."""
    return name if step == 1 else f"{name}/{step}"


def multiple(symbol: str) -> tuple[str, int]:
    """The size and the step that `stepped` made a symbol of."""
    found = re.fullmatch(r"(.+)/([1-9]\d*)", symbol)
    return (found[1], int(found[2])) if found else (symbol, 1)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Returns sizes as one line: `batch=5 height=112` for a batch of 5 and a height/16 of 7."""
    told = ((*multiple(name), size) for name, size in sizes.items())
    return " ".join(f"{name}={size * step}" for name, step, size in told)


def limits_text(limits: Range, step: int) -> str:
    """Returns the sizes of a range, each taken `step` times: `32..640 in steps of 32`."""
    low, high = (step * size for size in limits)
    steps = f" in steps of {step}" if step > 1 else ""
    return (f"from {low} on" if high >= MOST_SIZE else f"{low}..{high}") + steps
