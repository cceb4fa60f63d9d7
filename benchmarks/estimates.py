"""`python -m benchmarks.estimates`: estimates of whole plans against times of whole models.

Models of the zoo are planned and compiled for this machine, and run on one thread, everything of a
run but its first times counted. Results go to benchmarks/results/estimates.json; docs/cost.md shows
them once `python -m benchmarks.fit` writes it anew.
"""

import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, thread_time_ns

from benchmarks.cost_page import MODELS as RESULTS
from benchmarks.machine import provenance
from benchmarks.store import Entry, save
from rutc.driver.api import compile
from rutc.driver.plans.estimates import estimate_plan
from rutc.driver.plans.planning import planned
from rutc.driver.timing.trials import Clock
from rutc.emit.targets import native_target
from rutc.errors import RutcError
from rutc.graph_opt import versions
from rutc.importer import import_model
from rutc.models.zoo import find
from rutc.runtime import InferenceSession

MODELS = (
    "digits",
    "silero_vad",
    "magika",
    "ppocr_cls",
    "light_squeezenet",
    "light_shufflenet",
    "mobilenet_v2",
    "light_inception_v1",
    "resnet50",
    "minilm_l6",
    "unet",
    "gpt2",
    "vit_b16",
    "light_vgg19",
)
SECONDS = 2.0
"""A model runs for so long, and three times at least."""


def measure(name: str) -> Entry:
    """Returns the estimated and the measured cycles of a model."""
    model, machine = find(name), native_target().machine
    path = model.obtain()
    shapes = {n: tuple(s) for n, s in model.shapes.items()}
    start = perf_counter()
    plan, _ = planned(versions(import_model(path, shapes=shapes), machine), machine)
    ready = perf_counter()
    found = estimate_plan(plan, machine)
    seconds = perf_counter() - ready
    clock = Clock(machine)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "model.so"
        compile(path, library, shapes=shapes, verify=False)
        with InferenceSession(library, threads=1) as session:
            inputs, least, cycle = model.inputs(0), float("inf"), float("inf")
            session.run(None, inputs)
            begun, runs = perf_counter(), 0
            while perf_counter() - begun < SECONDS or runs < 3:
                before = thread_time_ns()
                session.run(None, inputs)
                least = min(least, thread_time_ns() - before)
                cycle = min(cycle, clock.cycle_ns())
                runs += 1
    return {
        "model": name,
        "launches": len(found.launches),
        "estimated_cycles": round(found.cycles),
        "cycles": round(least / cycle),
        "seconds_to_plan": round(ready - start, 2),
        "seconds_to_estimate": round(seconds, 2),
    }


def main() -> None:
    """Measures all models."""
    entries: list[Entry] = []
    for name in MODELS:
        try:
            entries.append({**measure(name), **asdict(provenance())})
        except RutcError as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            continue
        print(
            {k: v for k, v in entries[-1].items() if k not in ("versions", "features")}, flush=True
        )
    save(RESULTS, entries)


if __name__ == "__main__":
    main()
