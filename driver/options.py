"""What a compilation is asked for, and what it reports."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, get_args

from rutc.base.location import located
from rutc.base.record import record
from rutc.emit.linking.placement import WeightPlacement
from rutc.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from rutc.graph_opt.leeway import Leeway


FP32 = "fp32"
"""The precision in which nothing is rounded."""
BF16, FP16 = "bf16", "fp16"
"""The precisions in which weights may be of 16 bits; `BF16`: and so may factors of sums."""
W4 = "w4"
"""The precision in which weights may be of 4 bits."""
INT8, AUTO = "int8", "auto"
"""The precisions in which sums of products are of 8-bit integers; `AUTO`: within the tolerance."""
EIGHT_BITS = (INT8, AUTO)
"""Both of them."""
CALIBRATED = (*EIGHT_BITS, BF16)
"""The precisions of which values decide what is rounded."""
Method = Literal["minmax", "percentile", "mse"]
METHODS: tuple[Method, ...] = get_args(Method)
"""How the range of a value is found that is stored in 8 bits (`calibration`)."""
TOLERANCE = 0.1
"""How far results in 8 bits may be from those in float32: the norm of the difference by theirs."""

GREEDY, SEARCH = PLANS = ("greedy", "search")
"""How plans are made: by choices one after the other, or by a search from these on as well."""
USUAL = "the usual one"
"""What is said of a plan that is neither on record nor searched for."""
PLAN_SECONDS = 10.0
"""How long a plan is searched for, unless that is said."""


@record
class Calibration:
    """On what values are looked at, and how: a folder of cases, None for generated ones.

    The `digest` is that of the folder's files.
    """

    data: Path | None = None
    method: str = "mse"
    digest: str = ""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(
                f"there is no calibration by {self.method!r}: rutc has {', '.join(METHODS)}"
            )

    @classmethod
    def of(
        cls, precision: str, folder: str | os.PathLike[str] | None, method: str | None
    ) -> Calibration:
        """The calibration that is asked for with a precision.

        Raises:
            UserError: there is no such folder or method, or the precision needs none.
        """
        data = None if folder is None else Path(folder)
        if precision not in CALIBRATED and data is not None:
            said = " or ".join((", ".join(CALIBRATED[:-1]), BF16))
            raise UserError(f"a calibration is for --precision {said}, not for {precision}")
        if precision not in EIGHT_BITS and method is not None:
            said = " or ".join(EIGHT_BITS)
            raise UserError(f"ranges are found for --precision {said}, not for {precision}")
        if data is None:
            return cls(method=method or METHODS[-1])
        if not data.is_dir():
            raise UserError(f"--calibrate {data}: there is no such folder")
        digest = hashlib.sha256()
        for file in sorted(p for p in data.rglob("*") if p.is_file()):
            digest.update(str(file.relative_to(data)).encode(errors="surrogateescape"))
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return cls(data, method or METHODS[-1], digest.hexdigest())


@record
class Options:
    """How to compile.

    `target` names what for; several are separated by commas.

    `precision` names the type that weights may be stored in, or is `INT8` or `AUTO`: then
    `calibration` says how ranges are found, and `tolerance` how far results may be off. With `BF16`
    its first case decides how windows are filtered.

    `shapes` and `dims` fix symbolic sizes, by input name or by the model's own dim names; a
    tuple in `dims` is an inclusive range, perhaps with a step, and after it the size that most
    runs have, which plans are made for; a text is a formula of other sizes. Sizes that nothing
    fixes stay symbolic. `values` fixes the elements of inputs; a run with others fails. `states`
    maps inputs to the outputs that a session keeps for them, `*` standing for any text. `dump`
    names a folder for every intermediate form. `jobs` is the number of compiler threads.
    `exact_algorithms` leaves out rewrites that change more than the order of sums and fused
    multiply-adds.
    `plan` is how plans are made, one of `PLANS`; a search takes `plan_time` seconds, 0: as many
    changes on every machine.
    `spread` names sums of the graph whose inputs differ too much for most filters, `looser`
    sums and their filters that may lose more bits by rounding factors to bf16: of the values at
    hand they do not, or the sums lose as many in 8 bits. `only` names the sums whose factors may be
    rounded to bf16 whatever the precision, in the place of all that gain.
    `weights` says where the artifact has its weights.
    Subnormal numbers count as zeros in a run unless `keep_subnormals` is set. `db` is the database
    of tuning records that schedules are taken from, None: from none; `records` tells its state.
    """

    target: str = "native"
    precision: str = FP32
    calibration: Calibration = Calibration()
    tolerance: float = TOLERANCE
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, int | tuple[int, ...] | str] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    dump: Path | None = None
    jobs: int | None = None
    exact_algorithms: bool = False
    plan: str = GREEDY
    plan_time: float = PLAN_SECONDS
    spread: tuple[str, ...] = ()
    looser: tuple[tuple[str, str], ...] = ()
    only: tuple[str, ...] | None = None
    keep_subnormals: bool = False
    weights: WeightPlacement = "auto"
    db: str | None = None
    records: str = ""

    @property
    def in_eight_bits(self) -> bool:
        """Whether sums may be of 8-bit integers."""
        return self.precision in EIGHT_BITS

    @property
    def in_bf16(self) -> bool:
        """Whether factors of sums may be rounded to bf16."""
        return self.precision == BF16 or self.in_eight_bits or bool(self.only)

    @property
    def leeway(self) -> Leeway:
        """How far algorithms may round otherwise than the model's own sums."""
        from rutc.graph_opt.leeway import Leeway

        return Leeway(self.exact_algorithms, self.in_bf16, self.spread, self.looser, self.only)

    @property
    def search_seconds(self) -> float | None:
        """How long a plan is searched for; None: it is not."""
        return self.plan_time if self.plan == SEARCH else None

    @property
    def budget(self) -> float | None:
        """How far results may be off, if that decides which sums are of 8-bit integers."""
        return self.tolerance if self.precision == AUTO else None


NO_RECORDS = "none"
"""Instead of a database: schedules are the default ones."""


def records_of(db: str | os.PathLike[str] | None) -> tuple[str | None, str]:
    """The database of tuning records, None for none, and what tells its state."""
    if db == NO_RECORDS:
        return None, ""
    place = located(None if db is None else os.fspath(db))
    if db is None and not place.there:
        return None, ""
    state = place.state()
    # What a server has can change at any time: nothing made before is taken instead.
    return str(place.path or place.url), token_hex() if state is None else state


@record
class Report:
    """What compiling made and cost.

    `arena_bytes` is the memory of one session beside weights, `thread_bytes` what it has besides
    for each of its threads.

    `narrow_values` is how many values are stored in the type that the `precision` names, narrower
    than the one they are computed in; they take `narrow_bytes`, and would take `narrow_saved` more.

    Of the `sums` of products that can be of 8-bit integers, so many `integer_sums` are, with ranges
    that were found as `calibration` says. Products with constants that have other factors than of
    float32 can be none: of these `other_types`.

    So many of the kernels have schedules that are on record (`recorded`); `plan_source` says where
    the plan comes from.

    Of several `targets`, the best first, all of this is told of the first one, but for the weights,
    which are those of all.

    Where sizes are symbolic, numbers are those at common sizes, which `sizes` names; `arena_least`
    and `arena_most` are the memory at the least and the largest ones, and `arena_formula` says how
    much a session takes at any. `largest` names the latter, where all of them are known.

    `weights` is the file of weights; None: the library has them.
    """

    library: Path
    header: Path
    seconds: Mapping[str, float]
    kernels: int
    arena_bytes: int
    weight_bytes: int
    flops: int
    arena_least: int = 0
    arena_most: int = 0
    arena_formula: str | None = None
    sizes: str = ""
    largest: str = ""
    thread_bytes: int = 0
    narrow_values: int = 0
    narrow_bytes: int = 0
    narrow_saved: int = 0
    precision: str = FP32
    integer_sums: int = 0
    sums: int = 0
    recorded: int = 0
    plan_source: str = ""
    weights: Path | None = None
    targets: tuple[str, ...] = ()
    calibration: str = ""
    other_types: str = ""
