"""What a comparison of a compiled model with float64 and with ONNX Runtime found."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Self

from rutc.base.record import record
from rutc.errors import CheckFailed
from rutc.verify.judging.compare import BUDGET, OutputComparison, Value
from rutc.verify.judging.tolerance import Level
from rutc.verify.reference import reference_version


@record
class Verification:
    """The outputs of a compiled model beside those of float64 and of ONNX Runtime.

    `inputs` says where the inputs came from (`brief` after others), `values` are they. `rutc_s`
    and `reference_s` are the seconds of the one run of each, which is no benchmark. `truth` says
    why float64 judged nothing or not all; `runs` is how many inputs there were, `with_truth` for
    how many of them it did. `skipped` says of each case of a folder that was not run why, `refused`
    what rutc said of generated inputs that ONNX Runtime runs, `lossy` of each layer whose filtering
    costs accuracy on `values` how (see `filtering`), `related` which sizes belong together in what
    the model takes, `total=past+seq`, though nothing told it. Of a library of several the code for
    these `targets` was compared, that for those `elsewhere` not, as this machine cannot run it.
    """

    model: Path
    library: Path
    level: Level
    inputs: str
    brief: str
    threads: int | None
    outputs: tuple[OutputComparison, ...]
    rutc_s: float
    reference_s: float
    reference_version: str = field(default_factory=reference_version)
    values: Mapping[str, Value] = field(default_factory=dict, repr=False, compare=False)
    truth: str = ""
    runs: int = 1
    with_truth: int = 0
    skipped: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    lossy: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    related: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    @property
    def unverified(self) -> tuple[str, ...]:
        """What was not checked, or not by float64, a sentence each."""
        found = [f"refused at {text}" for text in self.refused]
        found += [f"{o.name!r}: {o.remark}" for o in self.outputs if o.remark]
        found += [f"the code for {target}: this CPU cannot run it" for target in self.elsewhere]
        return (*found, f"float64: {self.truth}") if self.truth else tuple(found)

    def summary(self) -> str:
        """Returns a few lines: how many outputs agree with what, on what, and the largest errors.

        What is remarked of those with a reservation is among what is `unverified`.

        1 of 1 outputs agree with float64 and ONNX Runtime 1.32.0
          on inputs generated from seed 0; values times 64
          largest error 2.2e-07 of the output's largest magnitude (ONNX Runtime's: 2e-07)
          nearest to its limit (18 % of it): index 2 of axis 1 of 'scores', values times 64
        """
        passed: dict[str, bool] = {}
        for o in self.outputs:
            name = o.output or o.name
            passed[name] = o.passed and passed.get(name, True)
        with_what = "float64 and " if self.with_truth else ""
        code = [f"with the code for {', '.join(self.targets)}"] if self.targets else []
        agreeing = f"{sum(passed.values())} of {len(passed)} outputs"
        agree = f"{agreeing} agree with {with_what}ONNX Runtime"
        agree += f" {self.reference_version}"
        reserved = {o.output or o.name for o in self.outputs if o.passed and o.remark}
        if reserved:
            agree += f"; {len(reserved)} of them with a reservation"
        told = [agree, f"on {self.inputs}", *code, *self._errors()]
        return "\n  ".join(told)

    def _errors(self) -> list[str]:
        known = [o for o in self.outputs if o.error is not None]
        if not known:
            worst = max((o.max_abs / (o.largest or 1.0) for o in self.outputs), default=0)
            return [f"largest difference {worst:.2g} of the output's largest magnitude"]
        budgets = {o.judged for o in known if o.judged.startswith(BUDGET)}
        if budgets:
            worst = max(o.error or 0.0 for o in known)
            return [f"largest relative error {worst:.2g}, within {', '.join(sorted(budgets))}"]
        floats = [o for o in known if "float" in o.dtype]
        ours = max((o.error or 0.0 for o in floats), default=0.0)
        theirs = max((o.reference_error or 0.0 for o in floats), default=0.0)
        others = max((o.error or 0.0 for o in known if "float" not in o.dtype), default=0.0)
        nearest = max(known, key=lambda o: o.share)
        text = f"largest error {ours:.2g} of the output's largest magnitude"
        text += f" (ONNX Runtime's: {theirs:.2g})"
        told = [text]
        if others:
            told.append(f"{others:.0%} of an output's integers are not float64's")
        if nearest.share:
            where = f"{nearest.group} of {nearest.name!r}"
            where += f", {nearest.case}" if nearest.case else ""
            told.append(f"nearest to its limit ({100 * nearest.share:.0f} % of it): {where}")
        return told


class VerificationFailed(CheckFailed):
    """A compiled model does not agree with ONNX Runtime; `verification` holds the details."""

    def __init__(self, message: str, verification: Verification) -> None:
        super().__init__(message)
        self.verification = verification

    def __reduce__(self) -> tuple[type[Self], tuple[str, Verification]]:
        return type(self), (str(self), self.verification)


SILENT = "says nothing:"
"""What the remark of an output begins with that a wrong model would give as well."""


def confirmed_outputs(found: Sequence[Verification]) -> frozenset[str]:
    """The outputs that float64 and ONNX Runtime agree on somewhere, with nothing to remark."""
    every = (o for v in found for o in v.outputs)
    sure = (o for o in every if o.passed and o.judged.startswith("float64") and not o.remark)
    return frozenset(o.name for o in sure)


def settled(verification: Verification, confirmed: Collection[str]) -> Verification:
    """Returns a verification whose contradictions are ONNX Runtime's where the reading is sure."""
    outputs = []
    for o in verification.outputs:
        if o.contradicted and o.name in confirmed:
            remark = (
                f"{o.reason.partition(':')[0]}: ONNX Runtime differs from float64, rutc does not"
            )
            o = replace(o, passed=True, reason="", contradicted=False, share=0.0, remark=remark)
        outputs.append(o)
    return replace(verification, outputs=tuple(outputs))


def together(found: Sequence[Verification]) -> Verification:
    """Returns one verification for several inputs: of each output, where it is worst.

    An output says nothing if it does so for all inputs; what else is remarked of it for some is
    told. The values are those of the worst case.
    """
    if len(found) == 1:
        return found[0]
    outputs = []
    for name in dict.fromkeys(o.name for v in found for o in v.outputs):
        seen = [o for v in found for o in v.outputs if o.name == name]
        heard = [o for o in seen if not o.remark.startswith(SILENT)] or seen[:1]
        outputs.append(_with_remarks(max(heard, key=_badness), heard))
    worst = max(found, key=_worst)
    same = len({v.inputs for v in found}) == 1
    briefs = [] if same else [v.brief for v in found[1:]]
    lacking = [v.truth for v in found if v.truth]
    return replace(
        worst,
        outputs=tuple(outputs),
        inputs="; ".join([found[0].inputs, *briefs]),
        truth=f"{lacking[0]} (for {len(lacking)} of {len(found)} inputs)" if lacking else "",
        runs=len(found),
        with_truth=sum(v.with_truth for v in found),
        skipped=tuple(text for v in found for text in v.skipped),
        refused=tuple(text for v in found for text in v.refused),
        related=tuple(dict.fromkeys(text for v in found for text in v.related)),
    )


def _with_remarks(worst: OutputComparison, seen: Sequence[OutputComparison]) -> OutputComparison:
    """The comparison of an output where it is worst, with what is remarked of it elsewhere."""
    told = {worst.remark: ""} if worst.remark else {}
    for o in seen:
        if o.remark:
            told.setdefault(o.remark, o.case)
    texts = [f"{remark} ({case})" if case else remark for remark, case in told.items()]
    return replace(worst, remark="; ".join(texts))


def _badness(output: OutputComparison) -> tuple[bool, float, float]:
    """How near an output is to failing, or how far beyond."""
    return not output.passed, output.share, output.max_abs / (output.largest or 1.0)


def _worst(verification: Verification) -> tuple[bool, float, float]:
    """How near the output of a case that is nearest to failing is to it."""
    return max(map(_badness, verification.outputs), default=(False, 0.0, 0.0))


def keep(found: list[Verification], new: Verification) -> None:
    """Adds a case; inputs are only kept of what may be the worst case at the end (`together`).

    Where ONNX Runtime contradicts, other cases decide what passes: such a case keeps its own.
    """
    found.append(new)
    sure = [
        number
        for number, v in enumerate(found)
        if v.values and not any(o.contradicted for o in v.outputs)
    ]
    worst = max(sure, key=lambda number: _worst(found[number]), default=None)
    for number in sure:
        if number != worst:
            found[number] = replace(found[number], values={})
