"""Values of inputs from files.

| file | what it gives |
|---|---|
| `a.npy` | one array |
| `a.npz` | the array with the input's name; the only one, where it is for a single input |
| `a.pb` | one ONNX `TensorProto`, as in ONNX's test data |
| `a.png`, `a.jpg` | an image, resized to the input's height and width; floats are in 0..1 |
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rutc.errors import UserError
from rutc.verify.feeding.input_spec import InputSpec
from rutc.verify.feeding.npz import NUMPY_ERRORS, numpy_says, open_npz
from rutc.verify.judging.compare import Array
from rutc.verify.judging.tolerance import is_float

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp"}
NUMPY_SUFFIXES = {".npy", ".npz"}
IMAGE_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}


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
        from rutc.importer.reading.tensor_file import read_tensor

        value = read_tensor(path)
    return conform(item, value, source)


def read_all(specs: Sequence[InputSpec], source: str) -> dict[str, Array]:
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
            f"the model takes [{', '.join(map(str, item.shape))}]"
        )
    return value


def restored(value: Array, dtype: np.dtype[np.generic]) -> Array:
    """Returns an array of a narrow dtype that numpy stored as bytes; any other as it is."""
    plain = value.dtype.kind == "V" and value.dtype.names is None
    return value.view(dtype) if plain and value.dtype.itemsize == dtype.itemsize else value


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
