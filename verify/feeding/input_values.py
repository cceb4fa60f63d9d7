"""Inputs of a model: generated from a seed, or as `NAME=SOURCE` items say.

A source is `random:SEED`, whose values `generate` draws, or a file (`verify.feeding.input_files`).
"""

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from operator import mul

import numpy as np
import numpy.typing as npt

from rutc.base.record import record
from rutc.errors import UserError
from rutc.tensor_ir.textual.parse import parse_index
from rutc.verify.feeding.input_files import read, read_all
from rutc.verify.feeding.input_spec import InputSpec
from rutc.verify.judging.compare import Array
from rutc.verify.judging.tolerance import is_float

DEFAULT_SYMBOL_EXTENT = 2
DRAWN_BYTES: Mapping[str, int] = {"c": 40, "O": 90}
"""What an element takes while it is drawn beside the result, by the kind of its type; others: 8."""
TEXT_BYTES = 60
"""What a string that is drawn takes, with its place in the array."""
GIB = 1 << 30

JOINED = re.compile(r"[A-Za-z_]\w*\s*\+\s*[A-Za-z_]\w*")
"""The sum of two sizes: of what was before and what is new."""


@record
class Spread:
    """How floats are drawn: normal values times `scale` plus `offset`."""

    scale: float = 1.0
    offset: float = 0.0

    def __str__(self) -> str:
        factor = f"{self.scale:g}" if self.scale >= 1 else f"1/{1 / self.scale:g}"
        parts = [f"times {factor}"] if self.scale != 1 else []
        parts += [f"plus {self.offset:g}"] if self.offset else []
        return " ".join(["values", *parts] if parts else [])


STANDARD = Spread()


def generate(
    specs: Sequence[InputSpec],
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    spread: Spread = STANDARD,
    *,
    joined: str | None = None,
    length: int | None = None,
) -> dict[str, Array]:
    """Returns seeded values for every input; the same seed gives the same values.

    Floats are normal, by default standard normal. Integers that say where in tables something is,
    as tokens do, are any row that all of these have, and a quarter of them 0 or 1, which tokens
    that pad mostly are. Others of 8 bits take all values. Wider ones
    are 0 or 1, which is valid as an index, a token, a mask and a length alike. They are 1 in what
    has an element for each token before and each new one, where an extent is a sum or the one that
    is `joined` of two others: nothing of a cache is masked. With a `length` of sequences, a single
    one is this, and those in a row are the last position before it. What divides integers has 1 in
    place of each 0, and wider integers are up to 2 there; floats that do are at least 1 or at most
    -1. Three quarters of strings are some that the model knows, if it knows any, others are decimal
    numbers. A symbol of a shape has the extent that `dims` gives it, or else 2. An input that may
    hold one value only gets that.

    Raises:
        UserError: they are larger than the memory of this machine.
    """
    extents = dict(dims or {})
    _check_memory(specs, extents)
    found = {item.name: _draw(item, seed, extents, spread, joined, length) for item in specs}
    for item in specs:
        if item.divides:
            _keep_from_zero(found[item.name])
    return found


def _keep_from_zero(x: Array) -> None:
    """Changes what is zero, or would be as an integer."""
    if is_float(x.dtype):
        away = x + np.copysign(np.ones_like(x), x)
        np.copyto(x, away, where=np.abs(x) < 1)
    else:
        x[x == 0] = 1


def is_length(item: InputSpec) -> bool:
    """Whether an input may say how long sequences are: a single integer of more than 8 bits."""
    single = item.shape in ((), (1,)) and not item.depth and item.value is None
    return single and item.dtype.kind in "iu" and item.dtype.itemsize > 1


def _check_memory(specs: Sequence[InputSpec], dims: Mapping[str, int]) -> None:
    counts = [prod(_extent(extent, dims) for extent in item.shape) for item in specs]
    sizes = [TEXT_BYTES if s.dtype.kind == "O" else s.dtype.itemsize for s in specs]
    drawn = [DRAWN_BYTES.get(s.dtype.kind, 8) for s in specs]
    # One input is drawn after another.
    need = sum(map(mul, counts, sizes)) + max(map(mul, counts, drawn), default=0)
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if need > most:
        largest = max(specs, key=lambda item: prod(_extent(e, dims) for e in item.shape))
        shape = [_extent(extent, dims) for extent in largest.shape]
        raise UserError(
            f"inputs of random numbers would take {need / GIB:.3g} GiB, and this machine has "
            f"{most / GIB:.3g} GiB; the largest is {largest.name!r} {shape}: fix smaller sizes "
            "with --dim or --shape, or compile with --no-verify"
        )


def _draw(
    item: InputSpec,
    seed: int,
    dims: Mapping[str, int],
    spread: Spread,
    joined: str | None,
    length: int | None,
) -> Array:
    if item.value is not None:
        return item.value.copy()
    random = np.random.default_rng([seed, zlib.crc32(item.name.encode())])
    shape = tuple(_extent(extent, dims) for extent in item.shape)
    if item.depth:
        return _draw_boxes(item, seed, dims, shape[0], spread)
    dtype = item.dtype
    # Of shape () numpy draws scalars, which are no arrays.
    if is_float(dtype):
        drawn = np.asarray(random.standard_normal(shape))
        # In place, for inputs can be large.
        drawn *= spread.scale
        drawn += spread.offset
        return drawn.astype(dtype, copy=False)
    if dtype.kind == "c":
        both = random.standard_normal(shape) + 1j * random.standard_normal(shape)
        return np.asarray(both).astype(dtype)
    if dtype.kind == "O":
        return _draw_texts(item, random, shape)
    is_integer = dtype.kind in "iu"
    if length is not None and is_integer and dtype.itemsize > 1 and len(shape) < 2:
        return np.full(shape, length if is_length(item) else length - 1, dtype)
    if item.rows and is_integer:
        most = int(np.iinfo(dtype.name).max)
        count = max(1, min(1 + most, *(_extent(rows, dims) for rows in item.rows)))
        limits = np.where(random.integers(0, 4, shape) > 0, count, min(count, 2))
        return np.asarray(random.integers(0, limits)).astype(dtype)
    if is_integer and dtype.itemsize == 1:
        low, high = (0, 255) if dtype.kind == "u" else (-128, 127)
        return random.integers(low, high, shape, endpoint=True).astype(dtype)
    names = [extent for extent in item.shape if isinstance(extent, str)]
    low = 1 if any(name == joined or JOINED.fullmatch(name) for name in names) else 0
    return random.integers(low, 1 + item.divides, shape, endpoint=True).astype(dtype)


def _draw_texts(item: InputSpec, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    numbers = np.asarray(random.integers(0, 1000, shape).astype(str).astype(object))
    if not item.texts:
        return numbers
    known = np.array(item.texts, object)[random.integers(0, len(item.texts), shape)]
    return np.asarray(np.where(random.integers(0, 4, shape) > 0, known, numbers), object)


def _draw_boxes(
    item: InputSpec, seed: int, dims: Mapping[str, int], count: int, spread: Spread
) -> Array:
    """Returns an array of objects: the elements of a sequence or optional."""
    made: npt.NDArray[np.object_] = np.empty(count, object)
    for place in range(count):
        inner = InputSpec(f"{item.name}[{place}]", item.dtype, item.shape[1:], texts=item.texts)
        made[place] = _draw(inner, seed, dims, spread, None, None)
        for _ in range(item.depth - 1):
            made[place] = [made[place]]
    return made


def _extent(extent: int | str, dims: Mapping[str, int]) -> int:
    """An extent, that of a symbol, or of a formula of symbols."""
    if isinstance(extent, int):
        return extent
    if extent in dims or not re.fullmatch(r"[\w.\s]+([+*-][\w.\s]+)+", extent):
        return dims.get(extent, DEFAULT_SYMBOL_EXTENT)
    formula = parse_index(extent)
    return int(formula.evaluate({n: _extent(n, dims) for n in formula.names()}))


def gather(
    specs: Sequence[InputSpec],
    sources: Sequence[str],
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """Returns all inputs from `NAME=SOURCE` items; what no item names is generated.

    An item without a name serves every input that no other one names: `random:3`, or a `.npz` that
    holds them by name.

    Raises:
        UserError: an item names no input of the model, names one twice, or cannot be read.
    """
    values, seeds = _given(specs, sources)
    sizes = {**(dims or {}), **_sizes(specs, values)}
    drawn = [item for item in specs if item.name not in values]
    found = {**values, **generate(drawn, seeds.get("", seed), sizes)}
    for item in drawn:
        if item.name in seeds:
            found.update(generate([item], seeds[item.name], sizes))
    return {item.name: found[item.name] for item in specs}


def check_sources(specs: Sequence[InputSpec], sources: Sequence[str]) -> None:
    """Checks `NAME=SOURCE` items.

    Raises:
        UserError: an item names no input of the model, names one twice, or cannot be read.
    """
    _given(specs, sources)


def given_names(specs: Sequence[InputSpec], sources: Sequence[str]) -> list[str]:
    """The inputs that `NAME=SOURCE` items give the values of; others are generated."""
    values, _ = _given(specs, sources)
    return [item.name for item in specs if item.name in values]


def told_names(specs: Sequence[InputSpec], sources: Sequence[str]) -> list[str]:
    """The inputs that `NAME=SOURCE` items give the values of, or say how to draw."""
    values, seeds = _given(specs, sources)
    return [item.name for item in specs if item.name in values or item.name in seeds or "" in seeds]


def _given(
    specs: Sequence[InputSpec], sources: Sequence[str]
) -> tuple[dict[str, Array], dict[str, int]]:
    """The values and the seeds that items give, by input; the seed of the others by ""."""
    items = dict(_items(sources, [item.name for item in specs]))
    values: dict[str, Array] = {}
    seeds: dict[str, int] = {}
    for name, source in items.items():
        if source.startswith("random:"):
            seeds[name] = _seed(name, source)
            continue
        wanted = [s for s in specs if s.name == name or (not name and s.name not in items)]
        if name or len(specs) == 1:
            values.update({item.name: read(item, source) for item in wanted})
        else:
            values.update(read_all(wanted, source))
    return values, seeds


def _items(sources: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields names, empty where an item serves every input, and sources.

    Raises:
        UserError: an item names no input, names one twice, or serves one only and names none.
    """
    given: set[str] = set()
    for argument in sources:
        name, source = _parted(argument, names)
        if name and name not in names:
            raise UserError(
                f"--input {argument}: the model has no input {name!r}; it has "
                + ", ".join(map(repr, names))
            )
        if name in given:
            raise UserError(f"--input {argument}: input {name!r} is given twice")
        given.add(name)
        serves_all = source.endswith(".npz") or source.startswith("random:")
        if not name and not serves_all and len(names) != 1:
            raise UserError(
                f"--input {argument}: the model has {len(names)} inputs: write NAME={source}"
            )
        yield name, source


def _parted(argument: str, names: Iterable[str]) -> tuple[str, str]:
    """The name in an item, empty if there is none, and the source; both may hold `=`."""
    known = [n for n in names if argument.startswith(f"{n}=")]
    if known:
        name = max(known, key=len)
        return name, argument.removeprefix(f"{name}=")
    if "=" not in argument or os.path.exists(argument):
        return "", argument
    name, _, source = argument.partition("=")
    return name, source


def _sizes(specs: Sequence[InputSpec], values: Mapping[str, Array]) -> dict[str, int]:
    """Returns the symbols that the shapes of given tensors tell."""
    found: dict[str, int] = {}
    given = [item for item in specs if item.name in values and not item.depth]
    for item in given:
        for wanted, extent in zip(item.shape, values[item.name].shape, strict=True):
            if isinstance(wanted, str):
                found.setdefault(wanted, extent)
    return found


def _seed(name: str, source: str) -> int:
    text = source.removeprefix("random:")
    if not text.isdecimal():
        item = f"{name}={source}" if name else source
        raise UserError(f"--input {item}: write random:SEED with a whole number, like random:0")
    return int(text)
