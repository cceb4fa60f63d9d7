"""On which generated inputs a compiled model is verified.

First come all sizes, then other magnitudes and offsets than a network expects: a scale folded into
weights or a sum taken apart shows there. For outputs that say nothing on all of these (zeros, a
saturated softmax) there are more (`others`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations

from rutc.base.record import record
from rutc.runtime import InferenceSession
from rutc.tensor_ir.indices.ranges import multiple, sizes_text
from rutc.verify.feeding.input_values import STANDARD, Spread, generate, is_length
from rutc.verify.feeding.ports import input_specs
from rutc.verify.feeding.sizes import (
    Ranges,
    Sizes,
    extents_at,
    modest,
    narrowed,
    sample_sizes,
    session_symbols,
    sums,
)
from rutc.verify.feeding.whole import WholeSession
from rutc.verify.judging.compare import Value
from rutc.verify.judging.tolerance import is_float

SPREADS = (Spread(2.0**-6), Spread(2.0**6), Spread(1.0, 2.0**8))
"""What floats are drawn from besides the standard normal distribution."""

PIXELS = (Spread(2.0**4, 2.0**7), Spread(2.0**-4, 0.5))
"""Those of pictures: eight deviations to either end of a byte, and of what is from 0 to 1."""

LOUDER = (Spread(0.1), Spread(10.0), Spread(0.01), Spread(1.0, 1.0), Spread(255.0, 128.0))
"""What may make outputs say something that say nothing on all else."""


@record
class Round:
    """Inputs and where they came from, `brief` after others."""

    source: str
    values: Mapping[str, Value]
    brief: str = ""


@record
class Draw:
    """Inputs that are yet to be generated: large ones are not all held at once."""

    seed: int
    sizes: Sizes
    spread: Spread = STANDARD
    joined: str | None = None
    """A size that is the sum of two others."""
    lengths: tuple[str, str] | None = None
    """Two sizes whose sum the lengths are that inputs hold, of caches with what is appended."""

    @property
    def extra(self) -> bool:
        """Whether they may be left out."""
        return self.spread != STANDARD

    def made(self, session: InferenceSession) -> Round:
        """The inputs.

        Raises:
            UserError: they are larger than the memory of this machine.
        """
        at = f"at {sizes_text(self.sizes)}" if self.sizes else ""
        parts = [f"inputs generated from seed {self.seed}", at, str(self.spread)]
        brief = str(self.spread) if self.extra else sizes_text(self.sizes)
        specs, extents = input_specs(session), extents_at(session, self.sizes)
        length = sum(self.sizes[name] for name in self.lengths) if self.lengths else None
        values = session.bundled(
            generate(specs, self.seed, extents, self.spread, joined=self.joined, length=length)
        )
        if self.lengths is not None:
            parts.append(f"lengths of {' + '.join(multiple(n)[0] for n in self.lengths)}")
        return Round(" ".join(filter(None, parts)), values, brief)


def affordable(session: WholeSession, sizes: Sizes) -> bool:
    """Whether the states have room for runs at these sizes, which are no more work than wanted."""
    return session.fits(sizes) and modest(session, sizes)


def draws(session: WholeSession, seed: int, dims: Mapping[str, int]) -> tuple[Draw, ...]:
    """Returns inputs at all sample sizes, then of other spreads at the first ones.

    Raises:
        UserError: the model has no such sizes as `dims`.
    """
    symbols = narrowed(session_symbols(session), dims)
    sampled = sample_sizes(symbols, partial(affordable, session))
    plain = [Draw(seed, sizes) for sizes in sampled]
    if not any(is_float(item.dtype) and item.value is None for item in input_specs(session)):
        return tuple(plain)
    spread = [Draw(seed + 1 + k, sampled[0], s) for k, s in enumerate(SPREADS)]
    return (*plain, *spread)


def joined(session: InferenceSession, draw: Draw, common: Sizes, symbols: Ranges) -> Iterator[Draw]:
    """Yields what is drawn where a size, or a length that an input holds, is the sum of two sizes.

    A model that is refused may be one whose mask or cache has room for both.
    """
    for sizes, name in sums(draw.sizes, common, symbols):
        yield replace(draw, sizes=sizes, joined=name)
    yield from _with_lengths(session, draw, common)


def sums_told(draw: Draw) -> tuple[str, ...]:
    """Returns what `--dim` says of a size that is the sum of two others: `total=past+seq`.

    Of a part that is 1 nothing is said: it may be another 1, as a batch beside the one new token.
    """
    if draw.joined is None:
        return ()
    whole = draw.sizes[draw.joined]
    pairs = combinations([name for name in draw.sizes if name != draw.joined], 2)
    found = [pair for pair in pairs if sum(draw.sizes[name] for name in pair) == whole]
    plain = all(multiple(name)[1] == 1 for name in draw.sizes)
    clear = plain and len(found) == 1 and all(draw.sizes[name] > 1 for name in found[0])
    return tuple(f"{draw.joined}={a}+{b}" for a, b in found) if clear else ()


def _with_lengths(session: InferenceSession, draw: Draw, common: Sizes) -> list[Draw]:
    """Returns what is drawn with lengths that are the sum of two sizes, if an input may hold one.

    What is commonly 1, as a batch is, is in no sum at first, and then 1: many a decoder takes
    several new tokens of a single sequence only.
    """
    if not any(is_length(item) for item in input_specs(session)):
        return []
    single = {name: 1 for name in draw.sizes if common[name] == 1}
    several = list(combinations([name for name in draw.sizes if name not in single], 2))
    found = [replace(draw, lengths=pair) for pair in several]
    found += [replace(draw, sizes={**draw.sizes, **single}, lengths=pair) for pair in several]
    found += [replace(draw, lengths=pair) for pair in combinations(draw.sizes, 2)]
    return [d for number, d in enumerate(found) if d not in found[:number]]


STEPS = 3
"""Runs one after the other by which states are verified."""


def following(session: WholeSession, seed: int, sizes: Sizes) -> Iterator[Round]:
    """Yields the inputs of runs of which each follows the one before, at some sizes.

    The states are those that the session has then, the first ones those after a reset. What cannot
    begin with empty states begins where the session is.
    """
    if not session.get_states():
        return
    symbols = session_symbols(session)
    growing = session.growing()
    if all(symbols[name][0] == 0 for name in growing.values()):
        session.reset()
    for step in range(STEPS):
        states = session.states()
        now = {name: states[state].shape[axis] for (state, axis), name in growing.items()}
        if any(size > symbols[name][1] for name, size in now.items()):
            return
        round_ = Draw(seed + 200 + step, {**sizes, **now}).made(session)
        at = ", ".join(filter(None, [f"step {step + 1}", sizes_text({**sizes, **now})]))
        yield Round(f"{round_.source}, step {step + 1}", {**round_.values, **states}, at)


def pictures(like: Draw) -> tuple[Draw, ...]:
    """Returns inputs at the same sizes whose floats are as those of pictures are.

    What becomes of a number outside of an integer's range when it is converted is left to each
    runtime.
    """
    return tuple(replace(like, spread=spread) for spread in PIXELS)


def others(ran: Draw) -> tuple[Draw, ...]:
    """Returns more inputs at the sizes of some that ran."""
    return tuple(
        replace(ran, seed=ran.seed + 100 + k, spread=spread) for k, spread in enumerate(LOUDER)
    )
