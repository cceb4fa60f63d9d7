"""Writes runtime/host/routines/case_map.h: simple case mappings of single characters.

    python tools/derive_case_map.py

A mapping is simple where Python's `str.lower` or `str.upper` of the character is one character.
Runs of characters that map by one distance, every one or every second, are one row.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

TARGET = Path(__file__).parent.parent / "runtime" / "host" / "routines" / "case_map.h"
Row = tuple[int, int, int, int]
"""First and last character, the step between them, and the distance to what they map to."""


def rows(mapping: Callable[[str], str]) -> list[Row]:
    """The mapping as rows in ascending order."""
    pairs = [
        (c, ord(m) - c)
        for c in range(sys.maxunicode + 1)
        if len(m := mapping(chr(c))) == 1 and m != chr(c)
    ]
    found: list[Row] = []
    for c, distance in pairs:
        if found:
            first, last, step, old = found[-1]
            fits = c - last == step or (first == last and c - last == 2)
            if distance == old and fits:
                found[-1] = (first, c, c - last, old)
                continue
        found.append((c, c, 1, distance))
    return found


def table(name: str, mapping: Callable[[str], str]) -> str:
    """The rows as C."""
    lines = [f"    {{{a}, {b}, {step}, {d}}}," for a, b, step, d in rows(mapping)]
    return "\n".join([f"static const rutc_case_row {name}[] = {{", *lines, "};"])


def main() -> None:
    """Writes the header."""
    TARGET.write_text(f"""\
/* Simple case mappings of Unicode {unicodedata.unidata_version}: tools/derive_case_map.py. */
#ifndef RUTC_CASE_MAP_H
#define RUTC_CASE_MAP_H

#include <stdint.h>

/* Characters first, first + step, .., last map to themselves plus distance. */
typedef struct rutc_case_row {{
  int32_t first;
  int32_t last;
  int32_t step;
  int32_t distance;
}} rutc_case_row;

{table("rutc_lower_rows", str.lower)}

{table("rutc_upper_rows", str.upper)}

#endif
""")


if __name__ == "__main__":
    main()
