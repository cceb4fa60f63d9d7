"""Names for values that the plan adds."""

from __future__ import annotations


def fresh(base: str, taken: set[str], between: str = "") -> str:
    """`base`, or it and a number, with `between`, that is not in `taken`, to which it is added."""
    number, name = 0, base
    while name in taken:
        number += 1
        name = f"{base}{between}{number}"
    taken.add(name)
    return name
