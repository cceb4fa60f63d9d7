"""Inputs of a model: generated from a seed, or read from files.

| source | what it gives |
|---|---|
| `random:SEED` | seeded values, as `generate` draws them |
| `a.npy` | one array |
| `a.npz` | the array with the input's name; the only one, where it is for a single input |
| `a.pb` | one ONNX `TensorProto`, as in ONNX's test data |
| `a.png`, `a.jpg` | an image, resized to the input's height and width; floats are in 0..1 |
"""

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from operator import mul
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rutc.base.record import record
from rutc.errors import UserError
from rutc.tensor_ir.parse import parse_index
from rutc.verify.compare import Array
from rutc.verify.npz import NUMPY_ERRORS, numpy_says, open_npz
from rutc.verify.tolerance import is_float

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp"}
NUMPY_SUFFIXES = {".npy", ".npz"}
IMAGE_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
DEFAULT_SYMBOL_EXTENT = 2
DRAWN_BYTES: Mapping[str, int] = {"c": 40, "O": 90}
"""What an element takes while it is drawn beside the result, by the kind of its type; others: 8."""
TEXT_BYTES = 60
"""What a string that is drawn takes, with its place in the array."""
GIB = 1 << 30

ONNX_DTYPES: Mapping[str, npt.DTypeLike] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "bool": np.bool_,
    "string": np.object_,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@record
class InputSpec:
    """One input of a model: its name, dtype, and shape with symbols for what is not fixed.

    `value` is what alone it may hold. A sequence or optional of `depth` levels has its length in
    front of the shape of the tensors in it.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str, ...]
    value: Array | None = None
    depth: int = 0


def spec(
    name: str, onnx_type: str, shape: Iterable[int | str | None], value: Array | None = None
) -> InputSpec:
    """Returns the spec of an input whose type is written as ONNX Runtime does: `tensor(float)`.

    Raises:
        UserError: the input is a map, or of a type that is unknown.
    """
    *levels, kind, element = onnx_type.rstrip(")").split("(")
    if kind != "tensor" or element not in ONNX_DTYPES or "map" in levels:
        raise UserError(
            f"input {name!r} is a {onnx_type}: only tensors can be generated or read from files"
        )
    extents = tuple(
        f"{name}.{axis}" if extent is None else extent for axis, extent in enumerate(shape)
    )
    return InputSpec(name, np.dtype(ONNX_DTYPES[element]), extents, value, len(levels))


JOINED = re.compile(r"[A-Za-z_]\w*\s*\+\s*[A-Za-z_]\w*")
"""The sum of two sizes: of what was before and what is new."""


@record
class Spread:
    """How floats are drawn: normal values times `scale` plus `offset`."""

    scale: float = 1.0
    offset: float = 0.0

    def __str__(self) -> str:
        parts = [f"times {self.scale:.3g}"] if self.scale != 1 else []
        return " ".join([*parts, f"plus {self.offset:g}"] if self.offset else parts)


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

    Floats are normal, by default standard normal. 8-bit integers take all values. Wider integers
    are 0 or 1, which is valid as an index, a token, a mask and a length alike. They are 1 in what
    has an element for each token before and each new one, where an extent is a sum or the one that
    is `joined` of two others: nothing of a cache is masked. With a `length` of sequences, a single
    one is this, and those in a row are the last position before it. A symbol of a shape has the
    extent that `dims` gives it, or else 2. An input that may hold one value only gets that.

    Raises:
        UserError: they are larger than the memory of this machine.
    """
    extents = dict(dims or {})
    _check_memory(specs, extents)
    return {item.name: _draw(item, seed, extents, spread, joined, length) for item in specs}


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
        return random.integers(0, 1000, shape).astype(str).astype(object)
    if dtype.kind in "iu" and dtype.itemsize == 1:
        low, high = (0, 255) if dtype.kind == "u" else (-128, 127)
        return random.integers(low, high, shape, endpoint=True).astype(dtype)
    if length is not None and dtype.kind in "iu" and len(shape) < 2:
        return np.full(shape, length if is_length(item) else length - 1, dtype)
    names = [extent for extent in item.shape if isinstance(extent, str)]
    low = 1 if any(name == joined or JOINED.fullmatch(name) for name in names) else 0
    return random.integers(low, 1, shape, endpoint=True).astype(dtype)


def _draw_boxes(
    item: InputSpec, seed: int, dims: Mapping[str, int], count: int, spread: Spread
) -> Array:
    """Returns an array of objects: the elements of a sequence or optional."""
    made: npt.NDArray[np.object_] = np.empty(count, object)
    for place in range(count):
        inner = InputSpec(f"{item.name}[{place}]", item.dtype, item.shape[1:])
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


def read(item: InputSpec, source: str) -> Array:
    """Returns the value of an input from a file of its own (see the module's table), in its dtype.

    Raises:
        UserError: the source cannot be read, or its dtype or shape is not the input's.
    """
    _check_tensor(item, source)
    path = _file(item.name, source)
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        value = _read_image(item, path)
    elif suffix in NUMPY_SUFFIXES:
        value = _read_numpy(item, path)
    else:
        # onnx is imported only where a .pb file is read.
        from rutc.importer.tensor_file import read_tensor

        value = read_tensor(path)
    return conform(item, value, source)


def _read_all(specs: Sequence[InputSpec], source: str) -> dict[str, Array]:
    """Returns the values of several inputs from one `.npz`, which is read once.

    Raises:
        UserError: it cannot be read, or lacks an input, or one does not fit.
    """
    path = _file("", source)
    for item in specs:
        _check_tensor(item, source)
    stored = open_npz(path)
    for item in specs:
        if item.name not in stored:
            raise _lacks(path, stored, item.name)
    return {item.name: conform(item, stored[item.name], source) for item in specs}


def _check_tensor(item: InputSpec, source: str) -> None:
    """Raises UserError for an input that no file holds as one array."""
    if item.depth:
        raise UserError(
            f"--input {item.name}={source}: the elements of a sequence or optional can be read "
            f"from files where their number is fixed when compiling (--dim {item.name}=2)"
        )


def _file(name: str, source: str) -> Path:
    """The file that a source names, of a kind that is read.

    Raises:
        UserError: there is no such file, or it is of another kind.
    """
    path = Path(source)
    argument = f"--input {name}={source}" if name else f"--input {source}"
    if not path.exists():
        raise UserError(f"{argument}: there is no such file")
    if not path.is_file():
        raise UserError(f"{argument}: it is no regular file")
    if path.suffix.lower() not in {*IMAGE_SUFFIXES, *NUMPY_SUFFIXES, ".pb"}:
        raise UserError(
            f"{argument}: rutc reads .npy, .npz, .pb, .png and .jpg files, and random:SEED"
        )
    return path


def conform(item: InputSpec, value: Array, source: str) -> Array:
    """Returns `value` if it fits the input; narrow dtypes that numpy stores as bytes are restored.

    Raises:
        UserError: the dtype or the shape does not fit.
    """
    value = restored(value, item.dtype)
    if item.dtype.kind == "O" and value.dtype.kind in "US":
        value = value.astype(object)
    if value.dtype != item.dtype:
        raise UserError(
            f"input {item.name!r} from {source} has dtype {value.dtype}, "
            f"the model takes {item.dtype}: convert it with .astype"
        )
    fits = len(value.shape) == len(item.shape) and all(
        isinstance(wanted, str) or wanted == extent
        for wanted, extent in zip(item.shape, value.shape, strict=True)
    )
    if not fits:
        raise UserError(
            f"input {item.name!r} from {source} has shape {list(value.shape)}, "
            f"the model takes {list(item.shape)}"
        )
    return value


def restored(value: Array, dtype: np.dtype[np.generic]) -> Array:
    """Returns an array of a narrow dtype that numpy stored as bytes; any other as it is."""
    plain = value.dtype.kind == "V" and value.dtype.names is None
    return value.view(dtype) if plain and value.dtype.itemsize == dtype.itemsize else value


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
            values.update(_read_all(wanted, source))
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


def _read_numpy(item: InputSpec, path: Path) -> Array:
    packed = path.suffix.lower() == ".npz"
    stored = open_npz(path) if packed else {item.name: _loaded(path)}
    if item.name in stored:
        return stored[item.name]
    if len(stored) == 1:
        return next(iter(stored.values()))
    raise _lacks(path, stored, item.name)


def _lacks(path: Path, stored: Iterable[str], name: str) -> UserError:
    """The error of a file that has no array for an input."""
    return UserError(
        f"{path} has no array {name!r}; it has {', '.join(map(repr, stored)) or 'none'}"
    )


def _loaded(path: Path) -> Array:
    try:
        stored = np.load(path, allow_pickle=False)
    except NUMPY_ERRORS as error:
        raise UserError(f"{path} is no numpy file: {numpy_says(error)}") from error
    if isinstance(stored, np.ndarray):
        return stored
    raise UserError(f"{path} holds several arrays: name it .npz")


def _read_image(item: InputSpec, path: Path) -> Array:
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError(
            f"reading {path} needs the package pillow: run `pip install pillow`"
        ) from error
    height, width, channels, channels_last = _image_layout(item)
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert(IMAGE_CHANNELS[channels]).resize((width, height)))
    except (OSError, EOFError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is no image that pillow can read: {error}") from error
    pixels = pixels.reshape(height, width, channels)
    if not channels_last:
        pixels = pixels.transpose(2, 0, 1)
    if is_float(item.dtype):
        return (pixels / np.float32(255)).astype(item.dtype)[np.newaxis]
    return pixels.astype(item.dtype)[np.newaxis]


def _image_layout(item: InputSpec) -> tuple[int, int, int, bool]:
    """Returns height, width, channels and whether channels come last, of one image {1, ...}."""
    if len(item.shape) == 4 and (isinstance(item.shape[0], str) or item.shape[0] == 1):
        _, a, b, c = item.shape
        if isinstance(b, int) and isinstance(c, int) and a in IMAGE_CHANNELS:
            return b, c, int(a), False
        if isinstance(a, int) and isinstance(b, int) and c in IMAGE_CHANNELS:
            return a, b, int(c), True
    raise UserError(
        f"input {item.name!r} has shape {list(item.shape)}: an image fits "
        "[1, CHANNELS, HEIGHT, WIDTH] or [1, HEIGHT, WIDTH, CHANNELS] with 1, 3 or 4 channels"
    )
