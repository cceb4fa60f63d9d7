"""Names for values that the plan adds."""

from __future__ import annotations


def fresh(base: str, taken: set[str]) -> str:
    """`base`, or what follows it with a number, that is not in `taken`, to which it is added."""
    number, name = 0, base
    while name in taken:
        number += 1
        name = f"{base}{number}"
    taken.add(name)
    return name
