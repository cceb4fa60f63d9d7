"""On which generated inputs a compiled model is verified.

First come all sizes, then other magnitudes and offsets than a network expects: a scale folded into
weights or a sum taken apart shows there. For outputs that say nothing on all of these (zeros, a
saturated softmax) there are more (`others`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rutc.record import record
from rutc.runtime import InferenceSession
from rutc.verify.compare import Value
from rutc.verify.inputs import STANDARD, InputSpec, Spread, generate, spec
from rutc.verify.sizes import Sizes, extents_at, sample_sizes, session_symbols, sizes_text
from rutc.verify.tolerance import is_float

SPREADS = (Spread(2.0**-6), Spread(2.0**6), Spread(1.0, 2.0**8))
"""What floats are drawn from besides the standard normal distribution."""

LOUDER = (Spread(0.1), Spread(10.0), Spread(0.01), Spread(1.0, 1.0), Spread(255.0, 128.0))
"""What may make outputs say something that say nothing on all else."""


@record
class Round:
    """Inputs and where they came from, `brief` after others; `extra` ones may be left out."""

    source: str
    values: Mapping[str, Value]
    brief: str = ""
    extra: bool = False


def rounds(
    session: InferenceSession, seed: int, dims: Mapping[str, int] | None
) -> tuple[Round, ...]:
    """Returns inputs at all sample sizes (or at `dims`), then of other spreads at the first one."""
    sampled = _sampled(session, dims)
    plain = [_round(session, seed, sizes, STANDARD) for sizes in sampled]
    if not any(is_float(item.dtype) and item.value is None for item in _specs(session)):
        return tuple(plain)
    spread = [_round(session, seed + 1 + k, sampled[0], s) for k, s in enumerate(SPREADS)]
    return (*plain, *spread)


def others(session: InferenceSession, seed: int, dims: Mapping[str, int] | None) -> Iterator[Round]:
    """Yields more inputs at the first size."""
    sizes = _sampled(session, dims)[0]
    for number, spread in enumerate(LOUDER):
        yield _round(session, seed + 100 + number, sizes, spread)


def _sampled(session: InferenceSession, dims: Mapping[str, int] | None) -> tuple[Sizes, ...]:
    return sample_sizes(session_symbols(session)) if dims is None else (dict(dims),)


def _round(session: InferenceSession, seed: int, sizes: Sizes, spread: Spread) -> Round:
    at = f"at {sizes_text(sizes)}" if sizes else ""
    made = generate(_specs(session), seed, extents_at(session, sizes), spread)
    source = " ".join(filter(None, [f"inputs generated from seed {seed}", at, str(spread)]))
    extra = spread != STANDARD
    return Round(source, session.bundled(made), str(spread) if extra else sizes_text(sizes), extra)


def _specs(session: InferenceSession) -> tuple[InputSpec, ...]:
    return tuple(spec(port.name, port.type, port.shape, port.value) for port in session.get_ports())
