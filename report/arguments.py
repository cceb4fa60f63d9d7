"""Checks and conversions of what users write on the command line, each with a clear error."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.base.files import check_writable, shown
from rutc.driver.options import NO_RECORDS
from rutc.errors import UserError

if TYPE_CHECKING:
    import numpy as np


# numpy is imported where it is needed: the compiler starts a C compiler before that takes its time.

PAGES = (".html", ".htm")

LARGEST_SIZE = (1 << 63) - 1
MOST_DIGITS = 100
"""Python reads no numbers of thousands of digits."""


def parse_dims(items: Sequence[str] | None) -> dict[str, int | tuple[int, ...] | str]:
    """Returns `["batch=2", "seq=1..512"]` as `{"batch": 2, "seq": (1, 512)}`.

    `"height=32..640/32"`, of multiples of 32, becomes `{"height": (32, 640, 32)}`, and
    `"batch=1..64@8"`, commonly 8, `{"batch": (1, 64, 1, 8)}`. Formulas of other sizes,
    `"total=past+seq"`, are texts, which the import reads: `{"total": "past+seq"}`.

    Raises:
        UserError: an item is no NAME=N or NAME=LOW..HIGH, perhaps with /STEP and @COMMON, and no
            formula, repeats a name, or contradicts itself.
    """
    dims: dict[str, int | tuple[int, ...] | str] = {}
    for item in items or ():
        name, _, text = item.partition("=")
        if name in dims:
            raise UserError(f"--dim {item}: {name!r} is given twice")
        if name and ".." not in text and re.search(r"[^\W\d]", text):
            dims[name] = text
            continue
        low, dots, rest = text.partition("..")
        rest, at, common = rest.partition("@")
        high, slash, step = rest.partition("/")
        step = step if slash or not at else "1"
        numbers = [low, *([high] if dots else []), *([step] if slash or at else [])]
        numbers += [common] if at else []
        if not name or not all(map(_is_size, numbers)) or (not dots and int(low) < 1):
            raise UserError(
                f"--dim {item}: write NAME=N with a positive whole number, batch=1, or a range "
                "NAME=LOW..HIGH, batch=1..64, or multiples NAME=LOW..HIGH/STEP, height=32..640/32; "
                "after a range the size that is the most common, batch=1..64@8; or a formula of "
                "other sizes, total=past+seq"
            )
        if dots and int(low) > int(high):
            raise UserError(f"--dim {item}: the range is empty: write the smaller number first")
        if slash and int(step) < 1:
            raise UserError(f"--dim {item}: the step must be positive")
        if at and (not int(low) <= int(common) <= int(high) or int(common) % int(step)):
            raise UserError(f"--dim {item}: the common size {common} is none of the range")
        dims[name] = tuple(int(n) for n in numbers) if dots else int(low)
    return dims


def parse_states(items: Sequence[str] | None) -> dict[str, str]:
    """Returns `["past.*=present.*"]` as `{"past.*": "present.*"}`.

    Raises:
        UserError: an item is no INPUT=OUTPUT, or repeats an input.
    """
    states: dict[str, str] = {}
    for item in items or ():
        name, _, output = item.partition("=")
        if not name or not output:
            raise UserError(
                f"--state {item}: write INPUT=OUTPUT, like past_key_values.0.key=present.0.key; * "
                'stands for any text: "past_key_values.*=present.*"'
            )
        if name in states:
            raise UserError(f"--state {item}: {name!r} is given twice")
        states[name] = output
    return states


def parse_sizes(items: Sequence[str] | None, option: str = "--dim") -> dict[str, int]:
    """Returns `["batch=2", "seq=0"]` as `{"batch": 2, "seq": 0}`: the sizes of a run.

    Raises:
        UserError: an item is no NAME=N, or repeats a name.
    """
    sizes: dict[str, int] = {}
    for item in items or ():
        name, _, text = item.partition("=")
        if not name or not _is_size(text):
            raise UserError(
                f"{option} {item}: a run has one size: write NAME=N with a whole number from 0 on"
            )
        if name in sizes:
            raise UserError(f"{option} {item}: {name!r} is given twice")
        sizes[name] = int(text)
    return sizes


def _is_size(text: str) -> bool:
    """Whether a text is a whole number that a size may be."""
    return text.isdecimal() and len(text) <= MOST_DIGITS and int(text) <= LARGEST_SIZE


def parse_shapes(items: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Returns `["x=1,3,8,8"]` as `{"x": (1, 3, 8, 8)}`; `x=` is a scalar.

    Raises:
        UserError: an item is no NAME=N,N,... with whole numbers, or repeats a name.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for item in items or ():
        name, equals, text = item.rpartition("=")
        extents = [part.strip() for part in text.split(",")] if text else []
        if not name or not equals or not all(map(_is_size, extents)):
            raise UserError(
                f"--shape {item}: write NAME=N,N,... with whole numbers, x=1,3,224,224; sizes that "
                "the model names are told by --dim NAME=1..8"
            )
        if name in shapes:
            raise UserError(f"--shape {item}: {name!r} is given twice")
        shapes[name] = tuple(map(int, extents))
    return shapes


def parse_values(items: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Returns the arrays of `["k=3", "axes=0,1", "x=x.npy"]`: a scalar, a list, a file's array.

    Raises:
        UserError: an item is neither numbers (or true, false) nor a readable file, or repeats a
            name.
    """
    values: dict[str, np.ndarray] = {}
    for item in items or ():
        name, equals, text = item.partition("=")
        if not name or not equals:
            raise UserError(f"--value {item}: write NAME=1,2,... or NAME=FILE.npy")
        if name in values:
            raise UserError(f"--value {item}: {name!r} is given twice")
        values[name] = _read_array(item, text) if text.endswith(".npy") else _numbers(item, text)
    return values


def _read_array(item: str, path: str) -> np.ndarray:
    import numpy as np

    from rutc.verify.feeding.npz import NUMPY_ERRORS, numpy_says

    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except NUMPY_ERRORS as error:
        raise UserError(f"--value {item}: cannot read the array: {numpy_says(error)}") from error


def _numbers(item: str, text: str) -> np.ndarray:
    import numpy as np

    words = [word.strip() for word in text.removesuffix(",").split(",")] if text else []
    for kind in (_boolean, int, float):
        try:
            found = np.array([kind(word) for word in words])
        except (ValueError, OverflowError):
            continue
        if found.dtype.kind in "bif":
            return found if "," in text or not text else found[0].reshape(())
    raise UserError(f"--value {item}: write numbers (or true, false) with commas between them")


def _boolean(word: str) -> bool:
    if word not in ("true", "false"):
        raise ValueError(word)
    return word == "true"


def check_bench(against: str | None, model: Path | None, seconds: float) -> None:
    """Checks the options of a benchmark.

    Raises:
        UserError: the peer is unknown, one of `--against` and `--model` is missing, there is no
            such model, or the time is no number of seconds.
    """
    if not math.isfinite(seconds):
        raise UserError(f"--seconds {seconds}: write a number of seconds, like 3")
    if against is not None and against != "onnxruntime":
        raise UserError(f"--against {against}: rutc compares with onnxruntime")
    if (against is None) != (model is None):
        raise UserError("to compare, give both --against onnxruntime and --model MODEL.onnx")
    if model is not None and not model.is_file():
        raise UserError(f"--model {shown(model)}: there is no such file")


def check_useless(given: Mapping[str, object], why: str) -> None:
    """Raises UserError where options are given that would change nothing, which says why."""
    useless = [option for option, value in given.items() if value]
    if useless:
        raise UserError(f"{', '.join(useless)}: {why}")


def check_database(db: str | None) -> None:
    """Raises UserError where a command that needs a database of tuning records is to have none."""
    if db == NO_RECORDS:
        raise UserError(
            f"--db {db}: this command needs a database of tuning records: give a file or a URL, or "
            "leave it out"
        )


def check_page(path: Path, source: Path) -> None:
    """Checks that a page about a file can be written to a path.

    Raises:
        UserError: the name does not end in `.html`, the file cannot be written, or is the source.
    """
    if path.suffix not in PAGES:
        raise UserError(f"--html {shown(path)}: the page is written as .html; name the file so")
    check_writable(path)
    if path.exists() and source.exists() and path.samefile(source):
        raise UserError(f"cannot write {shown(path)}: it is what the page is about")


def check_npz(path: Path) -> None:
    """Checks that outputs can be written to a path.

    Raises:
        UserError: the name does not end in `.npz`, or the file cannot be written.
    """
    if path.suffix != ".npz":
        raise UserError(f"--output {path}: outputs are written as .npz; name the file so")
    check_writable(path)
