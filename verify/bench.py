"""Latency and throughput of a compiled model beside ONNX Runtime, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from rutc.base.progress import Progress
from rutc.base.record import record
from rutc.errors import UserError
from rutc.runtime import InferenceSession, ModelError
from rutc.verify.feeding.whole import WholeSession
from rutc.verify.interleaved import Job, Latency, Run, require, take_turns
from rutc.verify.judging.compare import Value
from rutc.verify.reference import Reference, listed, saturates

Inputs = Mapping[str, Value]
Room = Mapping[str, tuple[str, tuple[int, ...]]]
"""The dtypes and shapes of a model's outputs, by name."""
ALIGNMENT = 64
EXACT = "onnxruntime, exact"
"""The name of the job of ONNX Runtime in its exact mode."""


@record
class BenchTiming:
    """One thread count: the latency of the model and, if compared, of ONNX Runtime.

    `exact` is that of its exact mode, where its sums of products of bytes may saturate otherwise.
    """

    threads: int
    rutc: Latency
    reference: Latency | None
    exact: Latency | None = None

    @property
    def ratio(self) -> float | None:
        """The model's median time over ONNX Runtime's: below 1 is faster."""
        return self.rutc.median_us / self.reference.median_us if self.reference else None

    @property
    def latencies(self) -> dict[str, Latency]:
        """What was measured of each."""
        all_ = {"rutc": self.rutc, "onnxruntime": self.reference, EXACT: self.exact}
        return {name: latency for name, latency in all_.items() if latency is not None}


def bench(
    library: Path,
    inputs: Inputs,
    *,
    threads: Sequence[int] = (1,),
    model: Path | None = None,
    seconds: float = 3.0,
    on_progress: Progress | None = None,
    target: str | None = None,
) -> tuple[BenchTiming, ...]:
    """Returns one timing per thread count.

    Args:
        library: What `rutc compile` wrote.
        inputs: A value per input.
        threads: The thread counts to measure.
        model: The ONNX file, to be measured in ONNX Runtime at its best optimisation level.
        seconds: How long to measure each at each thread count.
        on_progress: Is told each thread count.
        target: Of a library of several the one whose code runs; None: the best.

    Raises:
        UserError: the library or ONNX Runtime does not load or run.
    """
    room = room_for(library, inputs, target)
    results = []
    for index, count in enumerate(threads):
        if on_progress:
            on_progress("bench", index, len(threads))
        jobs = {"rutc": rutc_job(library, count, inputs, room, target)}
        if model is not None:
            jobs["onnxruntime"] = Job(run_onnxruntime, (model, count, inputs, room), "onnxruntime")
            jobs |= exact_job(model, count, inputs, room)
        found = take_turns(jobs, seconds)
        peer = require(found["onnxruntime"]) if model is not None else None
        exact = found[EXACT].latency if EXACT in found else None
        results.append(BenchTiming(count, require(found["rutc"]), peer, exact))
    if on_progress:
        on_progress("bench", len(threads), len(threads))
    return tuple(results)


def room_for(library: Path, inputs: Inputs, target: str | None = None) -> Room | None:
    """Returns what outputs are bound to; None where some cannot be, so that none are for any peer.

    Those are sequences, text, and what a library gives in memory of its own.
    """
    with WholeSession(library, threads=1, target=target) as session:
        names = [output.name for output in session.get_outputs()]
        values = dict(zip(names, session.run(None, inputs), strict=True))
        if not all(_plain(value) for value in (*inputs.values(), *values.values())):
            return None
        room = {n: (str(v.dtype), v.shape) for n, v in values.items() if isinstance(v, np.ndarray)}
        try:
            _bound(session, inputs, room)()
        except ModelError:
            return None
    return room


def _plain(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "bfiu"


def allocated(room: Room) -> dict[str, np.ndarray]:
    """Returns arrays for the outputs, each at the begin of a cache line."""
    return {name: aligned(np.empty(shape, dtype)) for name, (dtype, shape) in room.items()}


def copied(inputs: Inputs) -> dict[str, np.ndarray]:
    """Returns arrays for the inputs, each at the begin of a cache line."""
    return {name: aligned(np.asarray(value)) for name, value in inputs.items()}


def aligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy that begins at the begin of a cache line."""
    raw = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    copy = raw[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run_in_place(session: WholeSession, inputs: Inputs) -> Run:
    """Returns a run from the states that are given, whose outputs are where they were before.

    Memory that is new is slow where it is written first, which is no work of a kernel's. What
    cannot be bound, as what the library gives in memory of its own, is new each time.
    """
    names = [output.name for output in session.get_outputs()]
    values = dict(zip(names, session.run(None, inputs), strict=True))
    run: Run = partial(session.run, list(session.given(values)), inputs)
    if all(_plain(value) for value in (*inputs.values(), *values.values())):
        room = {n: (str(v.dtype), v.shape) for n, v in values.items()}
        with suppress(ModelError):
            bound = _bound(session, inputs, room)
            bound()
            run = bound
    run()
    return run


def _bound(session: WholeSession, inputs: Inputs, room: Room) -> Run:
    """A run from the states that are given, whatever the runs before have appended to them."""
    given = copied(session.taken(inputs))
    run = session.bind(given, allocated(session.given(room))).run
    states = {name: value for name, value in inputs.items() if name not in given}
    return partial(_from_states, session, states, run) if states else run


def _from_states(session: InferenceSession, states: Inputs, run: Run) -> None:
    for name, value in states.items():
        session.set_state(name, value)
    run()


def rutc_job(
    library: Path, threads: int, inputs: Inputs, room: Room | None, target: str | None = None
) -> Job:
    """Returns the job of a compiled model."""
    return Job(run_rutc, (library, threads, inputs, room, target))


def run_rutc(
    library: Path, threads: int, inputs: Inputs, room: Room | None, target: str | None = None
) -> Run:
    """Returns a run of a compiled model, as programs make it that leave states to the session."""
    session = WholeSession(library, threads=threads, target=target)
    taken = session.taken(inputs)
    for name, value in inputs.items():
        if name not in taken:
            session.set_state(name, value)
    # What a whole session does besides in Python takes as long as a small model.
    run: Run = partial(InferenceSession.run, session, None, taken)
    if room is not None:
        run = session.bind(copied(taken), allocated(session.given(room))).run
    lengths = [np.asarray(inputs[name]).shape[axis] for name, axis in session.growing()]
    return partial(_from_there, session, max(lengths), run) if lengths else run


def _from_there(session: InferenceSession, length: int, run: Run) -> None:
    """Runs from states of this length, whatever the run before has appended."""
    session.shorten(length)
    run()


def exact_job(model: Path, threads: int, inputs: Inputs, room: Room | None) -> dict[str, Job]:
    """Returns the job of ONNX Runtime's exact mode where it gives another result otherwise.

    It is for models whose sums of products of bytes may saturate. It fails of operators that the
    mode lacks.
    """
    if not saturates(model):
        return {}
    return {EXACT: Job(partial(run_onnxruntime, exact=True), (model, threads, inputs, room))}


def run_onnxruntime(
    model: Path, threads: int, inputs: Inputs, room: Room | None, *, exact: bool = False
) -> Run:
    """Returns a run of ONNX Runtime with all its optimisations, perhaps in its exact mode."""
    reference = Reference(model, threads, optimise=True, exact=exact)
    ours, theirs = sorted(inputs), sorted(port.name for port in reference.inputs)
    if ours != theirs:
        raise UserError(
            "the library was compiled from another model: its inputs are "
            f"{listed(ours)}, and those of {model} are {listed(theirs)}"
        )
    if room is None:
        return reference.unbound(inputs)
    return reference.bound(copied(inputs), allocated(room))
