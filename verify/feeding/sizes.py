"""Sizes to run a model of symbolic sizes at: common ones, and samples that cover its ranges."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from math import prod

import numpy as np

from rutc.errors import UserError
from rutc.importer.dims import clean_dim
from rutc.runtime import InferenceSession
from rutc.tensor_ir.indices.ranges import (
    CommonRange,
    Range,
    common_size,
    limits_text,
    multiple,
    sizes_text,
    without_common,
)
from rutc.tensor_ir.textual.parse import parse_index

Sizes = dict[str, int]
Ranges = Mapping[str, tuple[int, int]]

PRIMES = (5, 7, 11, 13, 3)
LARGEST = 64
"""No sample has a larger size, unless the range asks for it: a run should take little time."""
MULTIPLES = (2, 4, 8, 16, 32, 64)
"""Of what sizes may have to be multiples."""
MOST_BYTES, MOST_FLOPS = 128 << 20, 10e9
"""What a run at sampled sizes may hold and compute, if it can do with less: verification holds
several copies of its outputs, some in float64, and shall be a small part of a compilation."""


def planned_ranges(manifest: Mapping[str, object]) -> dict[str, Range]:
    """Returns the ranges of the sizes that a compiled model leaves open, as they were planned for.

    Inclusive ranges, with the common size where the model has one of its own.
    """
    listed, common = manifest.get("symbols"), manifest.get("common_sizes")
    ranges = listed if isinstance(listed, Mapping) else {}
    named = common if isinstance(common, Mapping) else {}
    return {
        str(name): CommonRange(int(low), int(high), int(named[name]))
        if name in named
        else (int(low), int(high))
        for name, (low, high) in ranges.items()
    }


def session_symbols(session: InferenceSession) -> dict[str, tuple[int, int]]:
    """Returns the sizes that a compiled model leaves open, with their inclusive ranges."""
    return without_common(planned_ranges(session.manifest))


def advice(session: InferenceSession) -> str:
    """Returns what may help where generated inputs are none that a model takes."""
    real = "Give real inputs with --input NAME=FILE"
    symbols = [multiple(symbol)[0] for symbol in session_symbols(session)]
    if not symbols:
        return real
    sizes = " ".join(f"--dim {name}=SIZE" for name in symbols)
    found = f"{real}, or compile the model for sizes that it takes: {sizes}"
    if len(symbols) > 1:
        found += "; if one of them is a sum of others, tell compile so: --dim NAME=A+B"
    return found


def extents_at(session: InferenceSession, sizes: Mapping[str, int]) -> Sizes:
    """Returns the sizes, and the extents of inputs that are formulas of them: `32*'h/32'`."""
    found = dict(sizes)
    for port in session.get_inputs():
        for extent in port.shape:
            if isinstance(extent, str) and extent not in found:
                found[extent] = int(parse_index(extent).evaluate(sizes))
    return found


def sizes_of(session: InferenceSession, values: Mapping[str, object]) -> Sizes:
    """Returns what a compiled model leaves open of its inputs' shapes, and is in these values.

    Raises:
        UserError: inputs say different sizes.
    """
    found: Sizes = {}
    told: dict[str, str] = {}
    for port in session.get_inputs():
        value = values.get(port.name)
        if not isinstance(value, np.ndarray):
            continue
        for extent, size in zip(port.shape, value.shape, strict=False):
            if not isinstance(extent, str):
                continue
            name = _size_named(extent)
            first = told.setdefault(name, port.name)
            if found.setdefault(name, size) != size:
                raise UserError(
                    f"input {port.name!r} has {name}={size}, and input {first!r} {found[name]}"
                )
    # What others tell is none of what is left open: `past + seq` beside both.
    return {
        name: size
        for name, size in found.items()
        if name.isidentifier() or not parse_index(name).names() <= found.keys()
    }


def _size_named(extent: str) -> str:
    """What an extent is called: `height` for `16*'height/16'`."""
    times, symbol = parse_index(extent).as_multiple or (0, "")
    name, step = multiple(symbol)
    return name if times == step else extent


def session_common_sizes(session: InferenceSession, dims: Mapping[str, int]) -> Sizes:
    """Returns the sizes of a run for which nothing tells others than `dims`: those planned for.

    Raises:
        UserError: there is no such symbol, or the size is out of its range.
    """
    planned = planned_ranges(session.manifest)
    known = narrowed(session_symbols(session), dims)
    return {name: min(max(common_size(planned[name]), a), b) for name, (a, b) in known.items()}


def modest(session: InferenceSession, sizes: Sizes) -> bool:
    """Whether a run at these sizes holds and computes no more than verification wants.

    Its operations are estimated from those at the sizes that it was planned for: as many more as it
    holds more, or has more in inputs and outputs, where memory serves one image after the other.
    """
    held = held_bytes(session, sizes)
    flops = session.manifest.get("flops")
    planned = {name: common_size(r) for name, r in planned_ranges(session.manifest).items()}
    growth = max(
        count(session, sizes) / max(count(session, planned), 1)
        for count in (held_bytes, port_bytes)
    )
    work = flops * growth if isinstance(flops, int) else 0.0
    return held <= MOST_BYTES and work <= MOST_FLOPS


def modest_common_sizes(session: InferenceSession) -> Sizes:
    """Returns the sizes planned for, halved until a run at them is `modest`."""
    lowest = {
        name: max(low, min(high, 1)) for name, (low, high) in session_symbols(session).items()
    }
    common = session_common_sizes(session, {})
    return _halved(common, lowest, lambda sizes: modest(session, sizes))


def _halved(sizes: Sizes, lowest: Sizes, modest: Callable[[Sizes], bool]) -> Sizes:
    """Returns sizes, halved until they are `modest` or the lowest ones."""
    while sizes != lowest and not modest(sizes):
        sizes = {name: max(lowest[name], size // 2) for name, size in sizes.items()}
    return sizes


def held_bytes(session: InferenceSession, sizes: Sizes) -> int:
    """The bytes of memory, inputs and outputs of a run, but for outputs whose sizes it computes."""
    arena = parse_index(str(session.manifest.get("arena_bytes")))
    # What the program itself computes, as a length that an input holds, is known in a run only.
    computed = dict.fromkeys(arena.names() - sizes.keys(), max(sizes.values(), default=1))
    return int(arena.evaluate({**computed, **sizes})) + port_bytes(session, sizes)


def port_bytes(session: InferenceSession, sizes: Sizes) -> int:
    """The bytes of inputs and outputs of a run, but for outputs whose sizes it computes."""
    total = 0
    for tensor in (*session.ports.inputs, *session.ports.outputs):
        shape = [parse_index(str(extent)) for extent in tensor.shape]
        if all(extent.names() <= sizes.keys() for extent in shape):
            elements = prod(int(extent.evaluate(sizes)) for extent in shape)
            total += elements * tensor.dtype.itemsize
    return total


def sample_sizes(
    symbols: Ranges, modest: Callable[[Sizes], bool] = lambda sizes: True
) -> tuple[Sizes, ...]:
    """Returns what to verify at: primes, the lowest sizes (1 at least), and large ones.

    What is 1 at most, as the number of elements of an optional, is 0 once. Sizes of which a run is
    not `modest` are halved until it is, and left out where they are then smaller than others.

    `{"batch": (1, 64), "seq": (0, 512)}`
    -> batch=5 seq=7, batch=1 seq=1, batch=64 seq=64
    """
    if not symbols:
        return ({},)
    primes = {
        name: min(low + PRIMES[i % len(PRIMES)] - min(low, 1), high)
        for i, (name, (low, high)) in enumerate(symbols.items())
    }
    lowest = {
        name: low if high == 1 else min(max(low, 1), high) for name, (low, high) in symbols.items()
    }
    highest = {name: min(max(low, LARGEST), high) for name, (low, high) in symbols.items()}
    samples: list[Sizes] = []
    for wanted in (primes, lowest, highest):
        sizes = _halved(wanted, lowest, modest)
        smaller = sizes != lowest and any(
            all(size <= known[name] for name, size in sizes.items()) for known in samples
        )
        if sizes not in samples and not smaller:
            samples.append(sizes)
    return tuple(samples)


def multiples(sizes: Sizes, symbols: Ranges) -> Iterator[Sizes]:
    """Yields larger sizes, the nearest first: those of which each is a multiple of 2, of 4, ...

    Networks that halve a picture and join what they made of it again take such sizes only.
    """
    told: list[Sizes] = [sizes]
    for step in MULTIPLES:
        found = {name: -(-size // step) * step for name, size in sizes.items()}
        if found not in told and all(low <= found[n] <= high for n, (low, high) in symbols.items()):
            told.append(found)
            yield found


def sums(sizes: Sizes, common: Sizes, symbols: Ranges) -> Iterator[tuple[Sizes, str]]:
    """Yields other sizes, of which one is the sum of two others, and that one's name.

    A decoder's mask has a column for each token before and for each new one. What is commonly 1 is
    1 first: many a decoder takes several new tokens of a single sequence only.
    """
    single = {name: 1 for name, size in common.items() if size == 1}
    for known in (single, {}):
        base = {**sizes, **known}
        for name, (low, high) in symbols.items():
            rest = [other for other in symbols if other != name and other not in known]
            for a, b in combinations(rest, 2) if name not in known else ():
                if low <= base[a] + base[b] <= high:
                    yield {**base, name: base[a] + base[b]}, name


def grown(common: Sizes, symbols: Ranges) -> Iterator[Sizes]:
    """Yields common sizes, and 2, 4, .. times as large ones; what is commonly 1 stays so.

    Signals of which blocks of blocks are taken, or that are mirrored at their ends, are long.
    """
    for step in (1, *MULTIPLES, *(MULTIPLES[-1] * m for m in MULTIPLES)):
        found = {name: size * step if size > 1 else size for name, size in common.items()}
        yield {name: min(size, symbols[name][1]) for name, size in found.items()}


def sizes_lines(sizes: Mapping[str, int]) -> list[str]:
    """Returns the line that says at which sizes a model ran; none for one of fixed sizes."""
    return [f"at {sizes_text(sizes)}"] if sizes else []


def narrowed(
    symbols: Ranges, dims: Mapping[str, int], option: str = "--dim"
) -> dict[str, tuple[int, int]]:
    """Returns the ranges of symbols, those of `dims` with one size.

    A size that is a multiple goes by its own name: `height=112` where the symbol is `height/16`.
    Names may be the model's own: `p2o.Dynamic.0` for `p2o_Dynamic_0`.
    An error names the `option` that told them.

    Raises:
        UserError: there is no such symbol, or the size is out of its range.
    """
    told = {multiple(symbol): symbol for symbol in symbols}
    steps = {name: (step, symbol) for (name, step), symbol in told.items()}
    found: dict[str, tuple[int, int]] = {}
    for name, size in dims.items():
        step, symbol = steps.get(name) or steps.get(clean_dim(name), (1, name))
        low, high = symbols.get(symbol, (0, -1))
        if size % step or not low <= size // step <= high:
            listed = ", ".join(
                f"{n} {limits_text(limits, k)}"
                for (n, k), limits in zip(told, symbols.values(), strict=True)
            )
            raise UserError(
                f"{option} {name}={size}: the compiled model has no such size; it runs at "
                + (listed or "one size only")
            )
        found[symbol] = size // step, size // step
    return {**symbols, **found}
