"""Checks and conversions of what users write on the command line, each with a clear error."""

from __future__ import annotations

import math
import operator
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from rutc.driver.options import EIGHT_BITS, NO_RECORDS, PLANS, SEARCH
from rutc.emit.files import cannot_write, check_replaceable, shown
from rutc.emit.placement import PLACEMENTS, WeightPlacement
from rutc.errors import UserError

if TYPE_CHECKING:
    import numpy as np


# numpy is imported where it is needed: the compiler starts a C compiler before that takes its time.

PRECISIONS = ("fp32", "bf16", "fp16", "w8", "w4", "int8", "auto")
"""What weights may be stored in, or multiplied in."""

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


def check_precision(precision: str) -> None:
    """Raises UserError where there is no such precision."""
    if precision not in PRECISIONS:
        raise UserError(
            f"precision {precision!r} is not supported: rutc compiles for {', '.join(PRECISIONS)}"
        )


def check_plan(plan: str, seconds: float | None) -> None:
    """Raises UserError where plans are not made so, or there is no search to take that long."""
    if plan not in PLANS:
        raise UserError(f"--plan {plan}: plans are made by one of {', '.join(PLANS)}")
    if seconds is None:
        return
    if plan != SEARCH:
        raise UserError(f"--plan-time is for --plan {SEARCH}: with {plan} there is no search")
    if not 0 <= seconds < math.inf:
        raise UserError(f"--plan-time {seconds:g}: give the seconds of a search, or 0")


def placement_of(weights: str) -> WeightPlacement:
    """Returns where weights are to be.

    Raises:
        UserError: there is no such place.
    """
    for placement in PLACEMENTS:
        if placement == weights:
            return placement
    raise UserError(f"--weights {weights}: weights are placed by one of {', '.join(PLACEMENTS)}")


def check_tolerance(tolerance: float | None, precision: str) -> None:
    """Raises UserError where no outputs can be off by so much, or none are that may be."""
    if tolerance is None:
        return
    if precision not in EIGHT_BITS:
        raise UserError(
            f"--tolerance is for --precision int8 or auto: with {precision} results are compared "
            "by what roundings explain"
        )
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise UserError(f"a tolerance of {tolerance} is none: give a number from 0 on")


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
                f"{option} {item}: a run has one size: write NAME=N with a whole number, batch=1"
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

    from rutc.verify.npz import NUMPY_ERRORS, numpy_says

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


def check_writable(path: Path) -> None:
    """Checks that a file can be created or replaced at a path.

    Raises:
        UserError: there is something else than a file, or its folder is missing or not writable.
    """
    folder = path.parent
    check_replaceable(path)
    if not folder.is_dir():
        raise UserError(f"cannot write {shown(path)}: there is no directory {shown(folder)}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"cannot write {shown(path)}: the directory {shown(folder)} is not writable"
        )


def check_folder(path: Path) -> None:
    """Checks that a path is that of a folder, or of nothing.

    Raises:
        UserError: there is something else.
    """
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            return
    except FileNotFoundError:
        if not path.is_symlink():
            return
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error
    raise UserError(
        f"cannot write the folder {shown(path)}: there is something else of that name; "
        "remove it or give another name"
    )


def check_number(name: str, number: SupportsIndex | None, most: int | None = None) -> None:
    """Checks a count that may be left out.

    Raises:
        UserError: it is not a whole number from 1 to `most`.
    """
    if number is None:
        return
    try:
        count = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        count = 0
    if not 1 <= count <= (most or math.inf):
        limit = f"from 1 to {most}" if most else "of at least 1"
        raise UserError(f"{name} must be a whole number {limit}, not {number!r}")


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
