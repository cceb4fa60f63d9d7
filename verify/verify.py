"""Checks a compiled model against float64 and ONNX Runtime on real or generated inputs."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from rutc.base.progress import Progress, nobody
from rutc.errors import UserError
from rutc.runtime import ModelError
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.indices.ranges import sizes_text
from rutc.verify.feeding.dataset import read_sample, sample_paths
from rutc.verify.feeding.rounds import (
    Draw,
    Round,
    affordable,
    draws,
    following,
    joined,
    others,
    pictures,
    sums_told,
)
from rutc.verify.feeding.session_values import session_level
from rutc.verify.feeding.sizes import (
    MOST_BYTES,
    advice,
    grown,
    held_bytes,
    multiples,
    narrowed,
    session_common_sizes,
    session_symbols,
)
from rutc.verify.feeding.whole import WholeSession
from rutc.verify.judging.budget import budget_of, within_budget
from rutc.verify.judging.compare import (
    Array,
    OutputComparison,
    Value,
    compare_outputs,
    compare_values,
)
from rutc.verify.judging.informative import says_nothing
from rutc.verify.judging.judge import judged, judged_by_reference
from rutc.verify.judging.tolerance import Level, is_float
from rutc.verify.reference import Reference, comparable, listed
from rutc.verify.truth.oracle import THOROUGH, Answer, Effort, Oracle, leaves
from rutc.verify.truth.weight_noise import roundoff_of
from rutc.verify.verification import (
    SILENT,
    Verification,
    confirmed_outputs,
    keep,
    settled,
    together,
)

LONG_S = 1.0
"""Larger sizes are tried as long as a run takes less."""


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
    target: str | None = None,
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
        target: Of a library of several the one to compare; None: the best.

    Raises:
        UserError: ONNX Runtime does not load or run the model.
        rutc.runtime.ModelError: the library does not load or refuses the inputs.
    """
    report = on_progress or nobody
    session = WholeSession(library, threads=threads, target=target)
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
        session: WholeSession,
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
        self.budget = budget_of(session.manifest)
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
                    f"{self.session.manifest.get('model')}: its {role} are {listed(ours)}, and "
                    f"those of {self.model} are {listed(theirs)}"
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
        ran: Draw | None = None
        chosen = draws(self.session, seed, dims)
        for number, draw in enumerate(chosen):
            report("verify", number, len(chosen))
            if draw.extra:
                if self.budget is not None:
                    # Ranges of values are those of common inputs.
                    continue
                if ran is None or not self.oracle.affords_more:
                    continue
                draw = replace(draw, sizes=ran.sizes, joined=ran.joined)
            if ran is not None:
                draw = replace(draw, lengths=ran.lengths)
            # Where one of the first sizes is the sum of others, it is so of all.
            sum_wanted = ran is not None and ran.joined is not None and not draw.extra
            try:
                told = refused if sum_wanted else self.add(found, draw)
            except ModelError as error:
                failure, told = error, str(error)
                refused = told
                own.append(f"{sizes_text(draw.sizes)}: {told}")
                continue
            if told and not draw.extra:
                refused = told
                for other in self.nearest(draw, dims, [v.inputs for v in found]):
                    told = self.add(found, other)
                    if not told:
                        draw = other
                        break
            if told:
                continue
            ran = draw if ran is None else ran
            if any(not o.passed and not o.contradicted for o in found[-1].outputs):
                return found
        for item in following(self.session, seed, ran.sizes) if ran is not None else ():
            keep(found, self.look(item, follows=True))
            if not found[-1].passed:
                return found
        if ran is None:
            raise failure or UserError(f"{refused} {advice(self.session)}")
        found[0] = replace(found[0], refused=tuple(own), related=sums_told(ran))
        if self.budget is not None:
            return found
        return [*found, *self.louder(found, ran)]

    def add(self, found: list[Verification], draw: Draw) -> str:
        """Adds what generated inputs show; returns why ONNX Runtime does not run them, or ""."""
        item = draw.made(self.session)
        try:
            keep(found, self.look(item))
        except UserError as error:
            # Some sizes of a range may be none of the model's.
            return f"{str(error).rstrip('.')}. They were {item.source}."
        return ""

    def nearest(self, draw: Draw, dims: Mapping[str, int], ran: Sequence[str]) -> Iterator[Draw]:
        """Yields other inputs than those that `ran`, the nearest sizes first that a model may take.

        The compiled model runs at them. Longer ones are tried while runs are short.
        """
        symbols = narrowed(session_symbols(self.session), dims)
        common = session_common_sizes(self.session, dims)
        # Multiples of one size may be taken where a sum is meant: a mask that is too short.
        near = [*joined(self.session, draw, common, symbols)]
        near += [replace(draw, sizes=s) for s in multiples(draw.sizes, symbols)]
        tried = [d for d in near if affordable(self.session, d.sizes)]
        refused_here = not self.takes(draw)
        for other in (*tried, *(replace(draw, sizes=s) for s in grown(common, symbols))):
            sizes = other.sizes
            if not self.session.fits(sizes) or held_bytes(self.session, sizes) > MOST_BYTES:
                return
            begin = time.perf_counter()
            if self.takes(other):
                found = self.least(draw, other) if refused_here else other
                if found.made(self.session).source in ran:
                    return
                yield found
            if time.perf_counter() - begin > LONG_S:
                return

    def least(self, draw: Draw, other: Draw) -> Draw:
        """The other one, but for sizes that need not differ from what is drawn."""
        for name, size in draw.sizes.items():
            fewer = replace(other, sizes={**other.sizes, name: size})
            if fewer.sizes != other.sizes and self.takes(fewer):
                other = fewer
        return other

    def takes(self, draw: Draw) -> bool:
        """Whether the compiled model runs on these inputs."""
        try:
            self.ours(draw.made(self.session).values)
        except (UserError, ModelError):
            return False
        return True

    def given(self, inputs: Mapping[str, Value], report: Progress) -> list[Verification]:
        """What given inputs show.

        Raises:
            UserError: ONNX Runtime does not run the model on them.
        """
        report("verify", 0, 1)
        try:
            return [self.look(Round("given inputs", dict(inputs)))]
        except UserError as error:
            raise UserError(f"{str(error).rstrip('.')}. {advice(self.session)}") from error

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

    def louder(self, found: Sequence[Verification], ran: Draw) -> list[Verification]:
        """What other inputs show of outputs that said nothing so far."""
        silent = {o.name for o in together(found).outputs if o.remark.startswith(SILENT)}
        made: list[Verification] = []
        for draw in others(ran):
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
        open_ = {o.name for v in found for o in v.outputs if o.contradicted}
        first = draws(self.session, seed + FRESH, {})[0] if open_ - known else None
        for draw in (first, *pictures(first)) if first is not None else ():
            if open_ <= known:
                break
            try:
                known |= confirmed_outputs([self.look(draw.made(self.session))])
            except (UserError, ModelError):
                # Not all inputs are any of the model's.
                continue
        return known

    def ours(self, values: Mapping[str, Value], *, follows: bool = False) -> dict[str, Value]:
        """The compiled model's outputs; those of a run that follows another read its states."""
        names = [output.name for output in self.session.get_outputs()]
        run = self.session.step if follows else self.session.run
        made = run(None, values)
        return {n: comparable(v) for n, v in zip(names, made, strict=True)}

    def look(self, item: Round, *, follows: bool = False) -> Verification:
        """The comparison for some inputs.

        Of a run that `follows` another the states are given to ONNX Runtime only.

        Raises:
            UserError: ONNX Runtime does not run the model on them.
        """
        begin = time.perf_counter()
        expected = self.reference.run(item.values)
        reference_s = time.perf_counter() - begin
        begin = time.perf_counter()
        ours = self.ours(item.values, follows=follows)
        rutc_s = time.perf_counter() - begin
        self.made = ours
        compared = compare_outputs(ours, expected, self.level)
        mine, theirs = leaves(ours), leaves(expected)
        answer = None if self.budget is not None else self.oracle.at(item.values)
        judged_ = [self.output(c, mine, theirs, answer) for c in compared]
        doubted = self.budget is None and not all(o.passed for o in judged_)
        if answer is None and doubted:
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
        if self.budget is not None:
            return within_budget(compared, x, r, self.budget)
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
            roundoff = roundoff_of(self.oracle.stored)
            steps = self.level is Level.QUANTISED
            noise = partial(answer.noise, name)
            flushed = partial(answer.flushed, name)
            found = judged(compared, x, r, truth, noise, roundoff, steps=steps, flushed=flushed)
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
