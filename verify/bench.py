"""Latency and throughput of a compiled model, interleaved with ONNX Runtime in one process.

On a shared machine the clock, the caches and the neighbours change from second to second. So the
two take turns: a short block of runs of one, then of the other, again and again, and the ratio of
the medians is what counts. Each block begins with an unmeasured run that warms the caches again,
after a pause in which the other's idle threads stop spinning.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from rutc.record import record
from rutc.runtime import load
from rutc.verify.compare import Value
from rutc.verify.reference import Reference
from rutc.verify.verify import Progress

PAUSE_S = 0.03
BLOCK_S = 0.02
Run = Callable[[], object]


@record
class Latency:
    """The times of the measured runs, in microseconds."""

    runs: int
    median_us: float
    p10_us: float
    p90_us: float
    p99_us: float
    minimum_us: float

    @property
    def per_second(self) -> float:
        """Runs per second, one after the other, at the median."""
        return 1e6 / self.median_us if self.median_us else 0.0


@record
class Timing:
    """One thread count: the latency of the model and, if compared, of ONNX Runtime."""

    threads: int
    rutc: Latency
    reference: Latency | None

    @property
    def ratio(self) -> float | None:
        """The model's median time over ONNX Runtime's: below 1 is faster."""
        return self.rutc.median_us / self.reference.median_us if self.reference else None


def bench(
    library: Path,
    inputs: Mapping[str, Value],
    *,
    threads: Sequence[int] = (1,),
    model: Path | None = None,
    seconds: float = 3.0,
    on_progress: Progress | None = None,
) -> tuple[Timing, ...]:
    """Returns one timing per thread count.

    Args:
        library: What `rutc compile` wrote.
        inputs: A value per input.
        threads: The thread counts to measure.
        model: The ONNX file, to be measured in ONNX Runtime at its best optimisation level.
        seconds: How long to measure at each thread count, all peers together.
        on_progress: Is told each thread count.

    Raises:
        UserError: ONNX Runtime does not load or run the model.
        rutc.runtime.ModelError: the library does not load or refuses the inputs.
    """
    results = []
    for index, count in enumerate(threads):
        if on_progress:
            on_progress("bench", index, len(threads))
        session = load(str(library), threads=count)
        runs: dict[str, Run] = {"rutc": partial(session.run, None, inputs)}
        if model is not None:
            reference = Reference(model, count, optimise=True)
            runs["onnxruntime"] = partial(reference.run, inputs)
        times = interleave(runs, seconds)
        peer = latency(times["onnxruntime"]) if model is not None else None
        results.append(Timing(count, latency(times["rutc"]), peer))
    if on_progress:
        on_progress("bench", len(threads), len(threads))
    return tuple(results)


def interleave(
    runs: Mapping[str, Run], seconds: float, minimum_blocks: int = 3
) -> dict[str, list[float]]:
    """Returns the seconds of every measured run of each peer, taking turns in short blocks."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    begin = time.perf_counter()
    blocks = 0
    while blocks < minimum_blocks or time.perf_counter() - begin < seconds:
        for name, run in runs.items():
            times[name].extend(_block(run))
        blocks += 1
    return times


def _block(run: Run) -> list[float]:
    time.sleep(PAUSE_S)
    run()
    times: list[float] = []
    block_begin = time.perf_counter()
    while not times or time.perf_counter() - block_begin < BLOCK_S:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


def latency(times: Sequence[float]) -> Latency:
    """Returns the summary of measured times in seconds."""
    micro = np.asarray(times) * 1e6
    p10, p90, p99 = (float(value) for value in np.percentile(micro, [10, 90, 99]))
    return Latency(len(times), float(statistics.median(micro)), p10, p90, p99, float(micro.min()))
