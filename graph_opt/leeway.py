"""How far a compilation may round otherwise than the model's own operations do."""

from __future__ import annotations

from rutc.base.record import record

Looser = tuple[tuple[str, str], ...]
"""(value, algorithm): sums whose filters of rounded factors may lose more bits, as they are known
to lose too little to matter."""


@record
class Leeway:
    """What the algorithms of a graph's sums may cost of their accuracy.

    If they are to be `exact`, rewrites that declare to round (`rounding.rounds`) are left out. With
    `bf16`, factors of sums may be rounded to that, and filters that are `looser` lose more by it;
    of sums that `only` names, if it names any. `spread` names sums whose inputs differ too much for
    most filters.
    """

    exact: bool = False
    bf16: bool = False
    spread: tuple[str, ...] = ()
    looser: Looser = ()
    only: tuple[str, ...] | None = None


USUAL_LEEWAY = Leeway()
"""All rewrites, in float32."""
