"""Judges a result and ONNX Runtime's by the truth in float64, slice by slice.

    e = |result - truth|, with ONNX Runtime's beside it       (`slices`: along each axis)

passes where e is at most what `tolerance` allows beside ONNX Runtime's. Where it is not, or where
ONNX Runtime itself is further off than float32 networks are, runs of the truth with noise tell what
the model's own types explain: an ill-conditioned sum, a value between two steps of a quantisation,
a label between two scores. ONNX Runtime is judged the same way:

| ONNX Runtime | rutc passes |
|---|---|
| explained by noise | within noise, or what is allowed beside ONNX Runtime's error |
| not, and the two agree | within what is allowed beside that error: the model's roundings decide |
| not, and they do not | never: one of ONNX Runtime and the importer, which truth shares, is wrong |

If the two agree on other inputs, the importer is right (`verify.settled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isclose

import numpy as np
import numpy.typing as npt

from rutc.verify.judging.axis_slices import Slice, Slices, slices
from rutc.verify.judging.compare import Array, OutputComparison, distance, real_parts
from rutc.verify.judging.tolerance import (
    CHOSEN,
    FUNCTION_ULPS,
    MISSED,
    MULTIPLE,
    SLICE_ULPS,
    UNTOLD,
    Level,
    is_float,
    tolerance,
    unit_roundoff,
)

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

Noise = Callable[[], Iterable[Array]]
"""Gives what runs of the truth with noise compute for an output, each made when it is asked for."""

Flushed = Callable[[], Array | None]
"""Gives what an output is if subnormal numbers count as zeros; None where nobody knows."""

Judged = tuple[float, Slice, float]
"""A slice as judged: (share of what is allowed, slice, error)."""

SHAPED = "its shape depends on roundings"
"""What is remarked of an output of as many elements as roundings make it have."""

FEW_RUNS = 3
"""Runs with noise that may be made however much work they are, until they explain a result: one
more explains no less."""


def judged(
    compared: OutputComparison,
    ours: Array,
    reference: Array,
    truth: Array,
    noise: Noise,
    roundoff: float = 0.0,
    *,
    steps: bool = False,
    flushed: Flushed = lambda: None,
) -> OutputComparison:
    """Returns the comparison of an output, passed or not by the truth.

    Args:
        compared: The output beside ONNX Runtime's, by the table of tolerances.
        ours: What the compiled model gave.
        reference: What ONNX Runtime gave, of the same type.
        truth: What float64 gives.
        noise: The truth with noise.
        roundoff: That of what the compiled model stores in fewer bits than it computes in.
        steps: Whether the model rounds values to few steps: which of them noise takes to another
            step differs from run to run, so that `MULTIPLE` times as much as noise did is explained
            of ONNX Runtime's.
        flushed: The truth with zeros for subnormal numbers, as the compiled model has them.
    """
    if ours.shape != reference.shape or ours.shape != truth.shape:
        return _judged_shape(compared, ours, reference, truth, noise)
    if ours.dtype.kind == "c":
        x, r, t = map(real_parts, (ours, reference, truth))
        return _Floats(compared, x, r, t, roundoff, steps=steps).judged(
            lambda: map(real_parts, noise())
        )
    if is_float(ours.dtype):
        floats = _Floats(compared, ours, reference, truth, roundoff, steps=steps)
        return floats.judged(noise, flushed)
    return _judged_discrete(compared, ours, reference, truth, noise)


def judged_by_reference(
    compared: OutputComparison, ours: Array, reference: Array
) -> OutputComparison:
    """Returns the comparison of an output that has no truth: its slices must be close as well.

    Elements pass by the table; a slice may differ by `UNTOLD` of its largest magnitude, and by
    the roundings of the whole. What rounds to few steps differs everywhere alike, once one value
    went to another step: then by `MULTIPLE` times the root of the mean square as well.
    """
    if not compared.passed or not is_float(ours.dtype) or not ours.size:
        return compared
    x, r = ours.astype(np.float64), reference.astype(np.float64)
    error = distance(x, r)
    magnitude = _finite(np.abs(r))
    base = SLICE_ULPS * unit_roundoff(ours.dtype) * magnitude.max(initial=0.0)
    scale = compared.tolerance.scale
    if scale >= tolerance(Level.QUANTISED, ours.dtype).scale:
        base += MULTIPLE * float(np.sqrt(np.square(_finite(error)).mean()))
    factor = max(UNTOLD, scale)
    for along in slices(ours.shape):
        found, allowed = along.largest(error), factor * along.largest(magnitude) + base
        beyond = found - allowed
        worst = int(beyond.argmax())
        if beyond[worst] > 0:
            reason = (
                f"{along[worst]}: differs from ONNX Runtime by {found[worst]:.2g}, "
                f"{found[worst] / (allowed[worst] or 1):.2g} times what is allowed there"
            )
            return replace(compared, passed=False, reason=reason, group=str(along[worst]))
    return compared


class _Floats:
    """One output of floats: the errors of both results, and what is allowed in each slice."""

    def __init__(
        self,
        compared: OutputComparison,
        ours: Array,
        reference: Array,
        truth: Array,
        roundoff: float = 0.0,
        *,
        steps: bool = False,
    ) -> None:
        self.compared = compared
        self.steps = steps
        self.dtype = ours.dtype
        self.roundoff = max(unit_roundoff(ours.dtype), roundoff)
        with np.errstate(over="ignore"):
            # Beyond the type's range an infinity is right.
            infinite = np.isinf(truth.astype(ours.dtype).astype(np.float64))
        t = np.where(infinite, np.copysign(np.inf, truth), truth.astype(np.float64))
        self.truth = t
        self.x, self.r = ours.astype(np.float64), reference.astype(np.float64)
        self.agree = judged_by_reference(compared, ours, reference).passed
        self.ours, self.theirs = distance(self.x, t), distance(self.r, t)
        # Where the model's own order of operations overflows in ONNX Runtime, rutc may as well; but
        # a finite result overflowed nowhere, and is judged.
        overflown = ~np.isfinite(self.theirs) & ~np.isfinite(self.r)
        self.open = overflown & ~(np.isfinite(self.x) & np.isfinite(t))
        self.theirs[overflown] = 0.0
        self.unjudged = overflown.any()
        # Where both are finite and float64 is not, one is judged by the other.
        both = np.isfinite(self.x) & np.isfinite(self.r)
        self.disputed = self.agree & both & ~np.isfinite(t)
        self.ours[self.disputed] = self.theirs[self.disputed] = 0.0
        self.flushed = np.zeros(t.shape, np.bool_)
        self.magnitude = _finite(np.abs(t))
        self.along = tuple(slices(ours.shape))

    def judged(self, noise: Noise, flushed: Flushed = lambda: None) -> OutputComparison:
        """The comparison, judged by ONNX Runtime's error, and if need be by noise."""
        largest = float(self.magnitude.max(initial=0.0)) or 1.0
        relative = float(self.theirs.max(initial=0.0)) / largest
        usual = relative <= tolerance(Level.MODEL, self.dtype).scale
        if usual and not self.unjudged:
            errors = [(a.largest(self.theirs), a) for a in self.along]
            found = self.worst(self.ours, [(MULTIPLE * e, a) for e, a in errors])
            if found[0] <= 1:
                return self.coarse(self.told(found, ""))
        moved = np.zeros(self.truth.shape)
        found, theirs = self.beside(moved)
        for run in noise():
            if run.shape == self.truth.shape:
                apart = distance(np.asarray(run, np.float64), self.truth)
                self.open |= ~np.isfinite(apart)
                moved = np.maximum(moved, _finite(apart))
            found, theirs = self.beside(moved)
            if max(found[0], theirs[0]) <= 1:
                break
        if found[0] > 1 and self.flush(flushed()):
            found, theirs = self.beside(moved)
        if found[0] > 1:
            return self.refused(found)
        if theirs[0] <= 1:
            return self.coarse(self.told(found, "by noise"))
        if not self.agree:
            return self.contradicted(theirs)
        remark = f"float32 decides it: ONNX Runtime is {theirs[2]:.2g} from float64 as well"
        return replace(self.told(found, "and ONNX Runtime"), remark=remark)

    def flush(self, flushed: Array | None) -> bool:
        """Leaves infinities out that follow from zeros for subnormal numbers; whether any do.

        Finite numbers that follow are judged: of all of a model's weights they would be nothing.
        """
        if flushed is None or flushed.shape != self.truth.shape:
            return False
        self.flushed = np.isinf(self.x) & (self.x == flushed) & np.isfinite(self.truth)
        self.open |= self.flushed
        return bool(self.flushed.any())

    def beside(self, moved: Numbers) -> tuple[Judged, Judged]:
        """Both results beside what noise moves: rutc's, for which more may speak, and the other."""
        self.ours[self.open] = self.theirs[self.open] = 0.0
        explained = [(a.largest(moved), a) for a in self.along]
        slack = MULTIPLE if self.steps else 1.0
        theirs = self.worst(self.theirs, [(slack * e, a) for e, a in explained], moved)
        yard = explained
        if theirs[0] <= 1 or self.agree:
            yard = [(np.maximum(e, MULTIPLE * a.largest(self.theirs)), a) for e, a in explained]
        return self.worst(self.ours, yard, moved), theirs

    def worst(
        self,
        error: Numbers,
        yard: Sequence[tuple[Numbers, Slices]],
        moved: Numbers | None = None,
    ) -> Judged:
        """The slice nearest to what is allowed, or furthest beyond it.

        Where noise moves a slice by much, roundings choose which of several values stand there, as
        in boxes whose scores are nearly equal. A few runs show few of the choices: such a slice may
        be off by its largest magnitude. Where values round to few steps, and noise takes some of an
        output's to another one, a few runs do not show all of these: any slice may be off by
        `MULTIPLE` times the root of the mean square of what noise moves.
        """
        u = self.roundoff
        base = float(np.finfo(np.float32).tiny)
        if self.steps and moved is not None and moved.size:
            base += MULTIPLE * float(np.sqrt(np.square(moved).mean()))
        whole = float(self.magnitude.max(initial=0.0)) or 1.0
        relative = float(yard[0][0].max(initial=0.0)) / whole
        found: list[Judged] = []
        for explained, along in yard:
            scale = along.largest(self.magnitude)
            allowed = np.maximum(explained, relative * scale) + SLICE_ULPS * u * scale + base
            if moved is not None:
                chosen = along.largest(moved) >= CHOSEN * scale
                allowed = np.where(chosen, np.maximum(allowed, scale), allowed)
            made = along.largest(error)
            share = made / allowed
            worst = int(share.argmax()) if share.size else 0
            found.append((float(share[worst]), along[worst], float(made[worst])))
        return max(found, key=lambda item: item[0])

    def told(self, found: Judged, how: str) -> OutputComparison:
        """The comparison with both errors, relative to the output's largest magnitude."""
        whole = float(self.magnitude.max(initial=0.0)) or 1.0
        share, group, _ = found
        return replace(
            self.compared,
            passed=True,
            reason="",
            mismatches=0,
            error=float(self.ours.max(initial=0.0)) / whole,
            reference_error=float(self.theirs.max(initial=0.0)) / whole,
            group=str(group),
            share=share,
            judged=f"float64 {how}".strip(),
            remark=self.uncompared(),
        )

    def coarse(self, told: OutputComparison) -> OutputComparison:
        """The comparison; it says how far off a result is where few bits leave little of it."""
        error = told.error or 0.0
        if self.roundoff <= unit_roundoff(self.dtype) or error < CHOSEN:
            return told
        remark = (
            f"off by {error:.2g} of its largest magnitude, which roundings of what is stored in "
            "fewer bits explain: these may be too few for the model"
        )
        return replace(told, remark="; ".join(filter(None, (told.remark, remark))))

    def uncompared(self) -> str:
        """How many elements float64 does not judge, and why; "" if none."""
        total = self.open.size
        masks = (self.flushed, self.open & ~self.flushed, self.disputed)
        flushed, beyond, disputed = map(np.count_nonzero, masks)
        told = []
        if flushed:
            told.append(
                f"{flushed} of {total} elements are infinite, as numbers below "
                f"{np.finfo(np.float32).tiny:.2g} count as zeros: if the model needs them, compile "
                "it with --keep-subnormals"
            )
        if beyond:
            told.append(f"{beyond} of {total} elements not compared: the model may overflow there")
        if disputed:
            told.append(f"{disputed} of {total} elements are finite, and not in float64")
        return "; ".join(told)

    def refused(self, found: Judged) -> OutputComparison:
        """The comparison of a result that is further from the truth than the types explain."""
        told = self.told(found, "")
        if self.near():
            return replace(told, judged="ONNX Runtime", remark="both runtimes differ from float64")
        share, group, error = found
        reason = (
            f"{group}: {error:.2g} from float64, {share:.3g} times what is allowed beside "
            f"ONNX Runtime's error there"
        )
        tiny = np.finfo(np.float32).tiny
        small = self.magnitude.max(initial=0.0) < tiny / np.finfo(np.float32).eps
        if small or error == np.inf:
            logarithm = "" if small else ", of which a logarithm or a reciprocal is infinite"
            reason += (
                f"; numbers below {tiny:.2g} count as zeros{logarithm}: if the model needs them, "
                "compile it with --keep-subnormals"
            )
        return replace(told, passed=False, reason=reason)

    def contradicted(self, found: Judged) -> OutputComparison:
        """The comparison of a result that float64 confirms and ONNX Runtime does not."""
        share, group, error = found
        how = f"is {error:.2g} from both, {share:.3g} times what the model's types explain"
        if error == np.inf:
            how = "is finite where neither is"
        reason = (
            f"{group}: rutc agrees with float64, ONNX Runtime {how}: "
            "it is wrong, or rutc reads the model wrongly"
        )
        if error == np.inf and self.roundoff == unit_roundoff(np.float16):
            reason += (
                ", or values on the way are beyond float16's 65504, which ONNX Runtime computes in "
                "float32: then compile the model in float32"
            )
        return replace(self.told(found, ""), passed=False, reason=reason, contradicted=True)

    def near(self) -> bool:
        """Whether the two results agree but for few roundings of each element."""
        allowed = FUNCTION_ULPS * unit_roundoff(self.dtype) * _finite(np.abs(self.r))
        return bool((distance(self.x, self.r) <= allowed).all())


def _judged_discrete(
    compared: OutputComparison, ours: Array, reference: Array, truth: Array, noise: Noise
) -> OutputComparison:
    """Integers, booleans and strings: each is the truth's, or one of those that noise makes of it.

    An element that noise changes, a label or a sum of steps of a quantisation, may differ by
    `MULTIPLE` times as much as noise changes any; a few others may differ by as much, which runs
    with noise happened to leave as they were. Strings differ by 1; ONNX Runtime may spell numbers
    otherwise.
    """
    wrong, other = np.asarray(ours != truth), np.asarray(reference != truth)
    if truth.dtype.kind in "OUST":
        other[other] = ~_same_numbers(reference[other], truth[other])
    told = replace(
        compared,
        passed=True,
        reason="",
        mismatches=0,
        judged="float64",
        error=_share(wrong),
        reference_error=_share(other),
    )
    if not wrong.any() and not other.any():
        return told
    beyond = _Discrete(ours, reference, truth, (wrong, other))
    for run in noise():
        if run.shape == truth.shape:
            beyond.move(run)
        if not (beyond.wrong() or beyond.other()):
            break
    told = replace(told, judged="float64 by noise")
    count = beyond.wrong()
    if count:
        if (ours == reference).all():
            return replace(told, judged="ONNX Runtime", remark="both runtimes differ from float64")
        reason = f"{count} of {wrong.size} elements are neither float64's nor near it"
        return replace(told, passed=False, mismatches=count, reason=reason)
    count = beyond.other()
    if count:
        reason = (
            f"rutc agrees with float64, ONNX Runtime has {count} of {other.size} other "
            "elements: it is wrong, or rutc reads the model wrongly"
        )
        return replace(told, passed=False, mismatches=count, reason=reason, contradicted=True)
    return told


def _same_numbers(x: Array, truth: Array) -> Mask:
    """Which texts spell the numbers that others do, to the digits that float32 tells apart."""

    def same(a: str, b: str) -> bool:
        try:
            return isclose(float(a), float(b), rel_tol=unit_roundoff(np.float32))
        except ValueError:
            return False

    return np.array([same(a, b) for a, b in zip(x.tolist(), truth.tolist(), strict=True)], np.bool_)


class _Discrete:
    """How many elements of both results noise does not explain."""

    def __init__(
        self, ours: Array, reference: Array, truth: Array, unequal: tuple[Mask, Mask]
    ) -> None:
        self.truth, self.unequal = truth, unequal
        self.steps = 0.0
        self.open = np.zeros(truth.shape, np.bool_)
        self.mine, self.theirs = _apart(ours, truth), _apart(reference, truth)
        self.narrow = truth.dtype.kind in "iu" and truth.dtype.itemsize == 1

    def move(self, run: Array) -> None:
        """Takes a run with noise in."""
        self.open |= np.asarray(run != self.truth)
        self.steps = max(self.steps, float(_apart(run, self.truth).max(initial=0.0)))

    def wrong(self) -> int:
        """How many of rutc's elements are too far off, without those that noise may have missed."""
        far = self.mine > MULTIPLE * self.steps
        return int(np.count_nonzero(far)) + self.counted(self.mine, self.unequal[0] & ~far)

    def other(self) -> int:
        """How many of ONNX Runtime's are."""
        return self.counted(self.theirs, self.unequal[1])

    def counted(self, apart: Numbers, unequal: Mask) -> int:
        """How many elements are other than noise makes them; 0 if it may have missed so few."""
        beyond = apart > self.steps if self.narrow and self.steps else ~self.open
        count = int(np.count_nonzero(unequal & beyond))
        return count if count > MISSED * np.count_nonzero(self.open) else 0


def _judged_shape(
    compared: OutputComparison, ours: Array, reference: Array, truth: Array, noise: Noise
) -> OutputComparison:
    """Results of several shapes: right where rounding decides the shape, and rutc's is near."""
    moved = np.zeros(truth.ndim)
    explained = False
    for run in noise():
        moved = np.maximum(moved, _resized(run, truth))
        near = compared.passed or (_resized(ours, truth) <= MULTIPLE * moved).all()
        explained = bool(moved.any() and near)
        if explained:
            break
    if compared.passed:
        remark = SHAPED if explained else "both runtimes differ from float64"
        return replace(compared, remark=remark, judged="ONNX Runtime")
    if explained:
        return replace(compared, passed=True, reason="", mismatches=0, remark=SHAPED)
    if ours.shape == truth.shape:
        reason = (
            f"its shape is {ours.shape} as in float64, ONNX Runtime's {reference.shape}: "
            "that is wrong, or rutc reads the model wrongly"
        )
        return replace(compared, passed=False, reason=reason, contradicted=True)
    reason = f"its shape is {ours.shape}, that of float64 {truth.shape}"
    return replace(compared, passed=False, reason=reason)


def _resized(x: Array, truth: Array) -> Numbers:
    """By how much each extent of a result differs from the truth's."""
    if x.ndim != truth.ndim:
        return np.full(truth.ndim, np.inf)
    return np.abs(np.subtract(x.shape, truth.shape)).astype(np.float64)


def _apart(x: Array, truth: Array) -> Numbers:
    """How far integers are apart; strings that are not equal, 1."""
    if x.dtype.kind in "OUST":
        return np.asarray(x != truth).astype(np.float64)
    return np.abs(x.astype(np.float64) - truth.astype(np.float64))


def _share(mask: Mask) -> float:
    return float(np.count_nonzero(mask)) / max(mask.size, 1)


def _finite(x: Numbers) -> Numbers:
    return np.where(np.isfinite(x), x, 0.0)
