"""Checks a compiled model against float64 and ONNX Runtime on real or generated inputs."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Self

import numpy as np

from rutc.errors import CheckFailed, UserError
from rutc.importer.quantised import is_quantised
from rutc.progress import Progress, nobody
from rutc.record import record
from rutc.runtime import InferenceSession, ModelError, load
from rutc.tensor_ir import DType, Graph
from rutc.verify.compare import (
    Array,
    OutputComparison,
    Value,
    compare_outputs,
    compare_values,
)
from rutc.verify.dataset import read_sample, sample_paths
from rutc.verify.informative import says_nothing
from rutc.verify.inputs import gather
from rutc.verify.judge import judged, judged_by_reference
from rutc.verify.oracle import THOROUGH, Answer, Effort, Oracle, leaves
from rutc.verify.ports import input_specs
from rutc.verify.reference import Reference, comparable, reference_version
from rutc.verify.rounds import Draw, Round, draws, others
from rutc.verify.sizes import (
    Sizes,
    advice,
    extents_at,
    session_common_sizes,
    sizes_of,
    sizes_text,
)
from rutc.verify.tolerance import Level, is_float


@record
class Verification:
    """The outputs of a compiled model beside those of float64 and of ONNX Runtime.

    `inputs` says where the inputs came from (`brief` after others), `values` are they. `rutc_s`
    and `reference_s` are the seconds of the one run of each, which is no benchmark. `truth` says
    why float64 judged nothing or not all; `runs` is how many inputs there were, `with_truth` for
    how many of them it did. `skipped` says of each case of a folder that was not run why, `refused`
    what rutc said of generated inputs that ONNX Runtime runs, `lossy` of each layer whose filtering
    costs accuracy on `values` how (see `filtering`).
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

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    @property
    def unverified(self) -> tuple[str, ...]:
        """What was not checked, or not by float64, a sentence each."""
        found = [f"refused at {text}" for text in self.refused]
        found += [f"{o.name!r}: {o.remark}" for o in self.outputs if o.remark]
        return (*found, f"float64: {self.truth}") if self.truth else tuple(found)

    def summary(self) -> str:
        """Returns one line: how many outputs agree with what, and the largest errors."""
        agreeing = sum(output.passed for output in self.outputs)
        with_what = "float64 and " if self.with_truth else ""
        return (
            f"{agreeing} of {len(self.outputs)} outputs agree with {with_what}ONNX Runtime "
            f"{self.reference_version} ({self.inputs}); {self._errors()}"
        )

    def _errors(self) -> str:
        known = [o for o in self.outputs if o.error is not None]
        if not known:
            worst = max((o.max_abs / (o.largest or 1.0) for o in self.outputs), default=0)
            return f"largest difference {worst:.2g} of the output's largest magnitude"
        floats = [o for o in known if "float" in o.dtype]
        ours = max((o.error or 0.0 for o in floats), default=0.0)
        theirs = max((o.reference_error or 0.0 for o in floats), default=0.0)
        others = max((o.error or 0.0 for o in known if "float" not in o.dtype), default=0.0)
        nearest = max(known, key=lambda o: o.share)
        text = f"largest error from float64 {ours:.2g} of the output's largest magnitude"
        text += f", ONNX Runtime's {theirs:.2g}"
        if others:
            text += f"; {others:.0%} of an output's integers are not float64's"
        if not nearest.share:
            return text
        where = f"{nearest.group} of {nearest.name!r}"
        where += f", {nearest.case}" if nearest.case else ""
        return f"{text}; nearest to its limit, at {nearest.share:.0%}: {where}"


class VerificationFailed(CheckFailed):
    """A compiled model does not agree with ONNX Runtime; `verification` holds the details."""

    def __init__(self, message: str, verification: Verification) -> None:
        super().__init__(message)
        self.verification = verification

    def __reduce__(self) -> tuple[type[Self], tuple[str, Verification]]:
        return type(self), (str(self), self.verification)


def verify_model(
    model: Path,
    library: Path,
    inputs: Mapping[str, Value] | None = None,
    *,
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    data: Path | None = None,
    graph: Graph | None = None,
    effort: Effort = THOROUGH,
    on_progress: Progress | None = None,
) -> Verification:
    """Returns the comparison of a compiled model with float64 and with ONNX Runtime.

    Args:
        model: The ONNX file that was compiled.
        library: What `rutc compile` wrote.
        inputs: A value per input; None generates them from `seed`, at several sizes where sizes
            are symbolic, and of several magnitudes.
        threads: Threads of both; None leaves the choice to each.
        dims: Extents of symbols that the compiled model keeps, for generated inputs.
        seed: Of generated inputs.
        data: A folder of inputs, of all of which the worst is told (see `dataset`). Cases that
            cannot be read or run are left out, and told.
        graph: The model's import, if there is one already.
        effort: How much work float64 may be.
        on_progress: Is told each step.

    Raises:
        UserError: ONNX Runtime does not load or run the model.
        rutc.runtime.ModelError: the library does not load or refuses the inputs.
    """
    report = on_progress or nobody
    session = load(str(library), threads=threads)
    verifier = Verifier(model, library, session, Oracle(model, session, graph, effort), threads)
    if data is not None:
        found = verifier.recorded(data, report)
    elif inputs is not None:
        found = verifier.given(inputs, report)
    else:
        found = verifier.generated(seed, dims or {}, report)
    known = verifier.confirmed(found, seed)
    report("verify", 1, 1)
    return together([settled(v, known) for v in found])


class Verifier:
    """A compiled model, what it is compared with, and how its outputs looked so far."""

    def __init__(
        self,
        model: Path,
        library: Path,
        session: InferenceSession,
        oracle: Oracle,
        threads: int | None,
    ) -> None:
        self.model = model
        self.library = library
        self.session = session
        self.oracle = oracle
        self.threads = threads
        self.reference = Reference(model, threads)
        self._check_same_model()
        self.level = session_level(session, model)
        self.made: Mapping[str, Value] = {}

    def _check_same_model(self) -> None:
        """Raises UserError if the library has other inputs or outputs than the model."""
        for role, compiled, stated in (
            ("inputs", self.session.get_inputs(), self.reference.inputs),
            ("outputs", self.session.get_outputs(), self.reference.outputs),
        ):
            ours, theirs = [p.name for p in compiled], [p.name for p in stated]
            if set(ours) != set(theirs):
                raise UserError(
                    f"{self.library} was compiled from another model, "
                    f"{self.session.manifest.get('model')}: its {role} are {_listed(ours)}, and "
                    f"those of {self.model} are {_listed(theirs)}"
                )

    def generated(self, seed: int, dims: Mapping[str, int], report: Progress) -> list[Verification]:
        """What generated inputs show, until an output differs.

        Raises:
            UserError: ONNX Runtime runs the model on none of them, or there are no such sizes.
            ModelError: The compiled model refuses all that ONNX Runtime runs.
        """
        found: list[Verification] = []
        refused = ""
        own: list[str] = []
        failure: ModelError | None = None
        ran: Sizes | None = None
        chosen = draws(self.session, seed, dims)
        for number, draw in enumerate(chosen):
            report("verify", number, len(chosen))
            if draw.extra:
                if ran is None or not self.oracle.affords_more:
                    continue
                draw = replace(draw, sizes=ran)
            try:
                told = self.add(found, draw)
            except ModelError as error:
                failure, told = error, str(error)
                own.append(f"{sizes_text(draw.sizes)}: {told}")
            if told:
                refused = told
                continue
            ran = draw.sizes if ran is None else ran
            if any(not o.passed and not o.contradicted for o in found[-1].outputs):
                return found
        if ran is None:
            raise failure or UserError(f"{refused} {self.advice()}")
        found[0] = replace(found[0], refused=tuple(own))
        return [*found, *self.louder(found, seed, ran)]

    def add(self, found: list[Verification], draw: Draw) -> str:
        """Adds what generated inputs show; returns why ONNX Runtime does not run them, or ""."""
        item = draw.made(self.session)
        try:
            keep(found, self.look(item))
        except UserError as error:
            # Some sizes of a range may be none of the model's.
            return f"{str(error).rstrip('.')}. They were {item.source}."
        return ""

    def given(self, inputs: Mapping[str, Value], report: Progress) -> list[Verification]:
        """What given inputs show.

        Raises:
            UserError: ONNX Runtime does not run the model on them.
        """
        report("verify", 0, 1)
        try:
            return [self.look(Round("given inputs", dict(inputs)))]
        except UserError as error:
            raise UserError(f"{str(error).rstrip('.')}. {self.advice()}") from error

    def advice(self) -> str:
        """What may help where ONNX Runtime does not run the model."""
        return advice(self.session)

    def recorded(self, folder: Path, report: Progress) -> list[Verification]:
        """What all cases of a folder show that can be read and run.

        Raises:
            UserError: none can.
        """
        paths = sample_paths(folder)
        found: list[Verification] = []
        skipped: list[str] = []
        for number, path in enumerate(paths):
            report("verify", number, len(paths))
            try:
                sample = read_sample(path, self.session)
                looked = self.look(Round(str(folder), sample.inputs, sample.name))
            except (UserError, ModelError) as error:
                told = str(error)
                skipped.append(told if str(path) in told else f"{path}: {told}")
                continue
            made = leaves(self.made)
            outputs = expected(looked.outputs, sample.expected, made, self.untold)
            keep(found, replace(looked, outputs=outputs))
        if not found:
            raise UserError("\n".join(skipped))
        cases = f"the {len(paths)} cases of {folder}" if len(paths) > 1 else f"the case of {folder}"
        if skipped:
            cases = f"{len(found)} of {cases}"
        found[0] = replace(found[0], skipped=tuple(skipped))
        return [replace(v, inputs=cases) for v in found]

    def louder(self, found: Sequence[Verification], seed: int, sizes: Sizes) -> list[Verification]:
        """What other inputs show of outputs that said nothing so far."""
        silent = {o.name for o in together(found).outputs if o.remark.startswith(SILENT)}
        made: list[Verification] = []
        for draw in others(seed, sizes):
            if not silent:
                break
            item = draw.made(self.session)
            try:
                told = leaves(self.ours(item.values))
                heard = {n for n in silent if n in told and not says_nothing(told[n])}
                if not heard:
                    continue
                keep(made, self.look(item))
            except (UserError, ModelError):
                # Not all inputs are any of the model's.
                continue
            silent -= heard
            if not made[-1].passed:
                break
        return made

    def confirmed(self, found: Sequence[Verification], seed: int) -> frozenset[str]:
        """The outputs that float64 and ONNX Runtime agree on for some inputs.

        Where ONNX Runtime contradicts both others on all that were used, generated ones are tried.
        """
        known = confirmed_outputs(found)
        open_ = {o.name for v in found for o in v.outputs if o.contradicted} - known
        if not open_:
            return known
        try:
            fresh = draws(self.session, seed + FRESH, {})[0].made(self.session)
            return known | confirmed_outputs([self.look(fresh)])
        except (UserError, ModelError):
            return known

    def ours(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """The compiled model's outputs."""
        names = [output.name for output in self.session.get_outputs()]
        made = self.session.run(None, values)
        return {n: comparable(v) for n, v in zip(names, made, strict=True)}

    def look(self, item: Round) -> Verification:
        """The comparison for some inputs.

        Raises:
            UserError: ONNX Runtime does not run the model on them.
        """
        begin = time.perf_counter()
        expected = self.reference.run(item.values)
        reference_s = time.perf_counter() - begin
        begin = time.perf_counter()
        ours = self.ours(item.values)
        rutc_s = time.perf_counter() - begin
        self.made = ours
        compared = compare_outputs(ours, expected, self.level)
        mine, theirs = leaves(ours), leaves(expected)
        answer = self.oracle.at(item.values)
        judged_ = [self.output(c, mine, theirs, answer) for c in compared]
        if answer is None and not all(o.passed for o in judged_):
            # Nothing is refused for ONNX Runtime's roundings as long as float64 can tell.
            answer = self.oracle.at(item.values, doubted=True)
            judged_ = [self.output(c, mine, theirs, answer) for c in compared]
        outputs = tuple(replace(o, case=item.brief) for o in judged_)
        return Verification(
            self.model,
            self.library,
            self.level,
            item.source,
            item.brief,
            self.threads,
            outputs,
            rutc_s,
            reference_s,
            values=item.values,
            truth="" if answer is not None else self.oracle.refused,
            with_truth=int(answer is not None),
        )

    def output(
        self,
        compared: OutputComparison,
        ours: Mapping[str, Array],
        theirs: Mapping[str, Array],
        answer: Answer | None,
    ) -> OutputComparison:
        """One output's comparison, judged by the truth where there is one."""
        name = compared.name
        traits = self.oracle.traits_of(name)
        x, r = ours.get(name), theirs.get(name)
        if x is None or r is None or x.dtype != r.dtype:
            return compared
        if traits.random:
            same = x.shape == r.shape and x.dtype == r.dtype
            reason = "" if same else compared.reason
            return replace(compared, passed=same, reason=reason, remark=RANDOM)
        truth = None if answer is None else answer.outputs.get(name)
        if answer is None or truth is None:
            level = self.untold(name)
            if level is not self.level:
                (compared,) = compare_values(name, x, r, level)
            found = judged_by_reference(compared, x, r) if x.shape == r.shape else compared
        else:
            found = judged(compared, x, r, truth, lambda: answer.noise(name))
        why = _silence(x, truth) if traits.varies else ""
        return replace(found, remark=f"{SILENT} {why}") if why and found.passed else found

    def untold(self, name: str) -> Level:
        """How strictly an output is compared without truth: as the types on its way round."""
        narrow = self.oracle.traits_of(name).narrow
        if self.level is not Level.MODEL or not narrow:
            return self.level
        return Level.REDUCED if DType.BF16 in narrow else Level.HALF


FRESH = 1000
"""What is added to a seed for inputs that were not used yet."""

RANDOM = "drawn at random: only its type and shape are compared"

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
    )


def _with_remarks(worst: OutputComparison, seen: Sequence[OutputComparison]) -> OutputComparison:
    """The comparison of an output where it is worst, with what is remarked of it elsewhere."""
    told = {worst.remark: ""} if worst.remark else {}
    for o in seen:
        if o.remark:
            told.setdefault(o.remark, o.case)
    texts = [f"{remark} ({case})" if case else remark for remark, case in told.items()]
    return replace(worst, remark="; ".join(texts))


def expected(
    outputs: Sequence[OutputComparison],
    wanted: Mapping[str, Value],
    made: Mapping[str, Array],
    level: Callable[[str], Level],
) -> tuple[OutputComparison, ...]:
    """Returns the comparisons, each failing as well if its output is not as a data set expects.

    Args:
        outputs: The comparisons so far.
        wanted: What is expected of some outputs.
        made: The compiled model's outputs, by the names of comparisons.
        level: How strictly an output is compared.
    """
    found = []
    tensors = leaves(wanted)
    surplus = "the model gives it, and the data does not expect it"
    for output in outputs:
        value = tensors.get(output.name)
        if value is None and output.name in made and _is_part(output.name, wanted):
            found.append(replace(output, passed=False, contradicted=False, reason=surplus))
            continue
        if value is None or output.remark == RANDOM:
            found.append(output)
            continue
        (other,) = compare_values(output.name, made.get(output.name), value, level(output.name))
        told = replace(output, expected_error=other.max_abs / (other.largest or 1.0))
        if not other.passed and (output.passed or output.contradicted):
            reason = f"not what the data expects: {other.reason}"
            told = replace(told, passed=False, contradicted=False, reason=reason)
        found.append(told)
    absent = "the data expects it, and the model does not give it"
    known = {o.name for o in outputs}
    for name, value in tensors.items():
        if name in known:
            continue
        failed = OutputComparison(name, str(value.dtype), value.shape, passed=False, reason=absent)
        found.append(failed)
    return tuple(found)


def _is_part(name: str, values: Mapping[str, Value]) -> bool:
    """Whether a tensor of this name would belong to one of the values that are no tensors."""
    whole = (n for n, v in values.items() if not isinstance(v, np.ndarray))
    return any(name == n or name.startswith(f"{n}[") for n in whole)


def _silence(made: Array, truth: Array | None) -> str:
    """Why an output says nothing: the truth does not, or no finite number is left of it."""
    lost = is_float(made.dtype) and not np.isfinite(made.astype(np.float64)).any()
    return says_nothing(made if truth is None or lost else truth)


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


def session_values(
    session: InferenceSession,
    sources: Sequence[str],
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Value]:
    """Returns all inputs of a compiled model from `NAME=SOURCE` items, as `inputs.gather` does.

    What is generated has the sizes of what is given, or else those of `dims` and common ones.

    Raises:
        UserError: an item or a size does not fit the model.
    """
    specs = input_specs(session)
    common = session_common_sizes(session, dims or {})
    given = gather(specs, sources, seed, extents_at(session, common))
    return session.bundled(given)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def run_values(
    session: InferenceSession, sources: Sequence[str], dims: Mapping[str, int]
) -> tuple[dict[str, Value], Sizes]:
    """Returns all inputs of a run as `session_values` does, and the sizes that they have.

    Raises:
        UserError: an item or a size does not fit the model, or what is given has other sizes.
    """
    values = session_values(session, sources, dims=dims)
    sizes = sizes_of(session, values)
    for name, size in dims.items():
        if sizes.get(name, size) != size:
            raise UserError(f"--dim {name}={size}: what --input gives has {name}={sizes[name]}")
    return values, sizes


def session_level(session: InferenceSession, model: Path) -> Level:
    """Returns how strictly a compiled model is compared with ONNX Runtime alone."""
    if session.manifest.get("precision", "fp32") != "fp32":
        return Level.REDUCED
    return Level.QUANTISED if is_quantised(model) else Level.MODEL
