"""`python -m benchmarks.estimates`: estimates of whole plans against times of whole models.

    python -m benchmarks.estimates                 # all models
    python -m benchmarks.estimates digits unet     # these, beside others of this machine and commit

Models of the zoo are planned and compiled for this machine, and run on one thread, everything of a
run but its first times counted. Results go to benchmarks/results/estimates.json, in place of those
of other machines and commits, and their table to docs/cost.md.
"""

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, thread_time_ns

from benchmarks.cost_page import MODELS as RESULTS
from benchmarks.cost_page import with_models
from benchmarks.machine import ROOT, provenance
from benchmarks.store import Entry, load, measured_already, save
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


def beside(before: list[Entry], entry: Entry) -> list[Entry]:
    """Returns an entry among those of its machine and commit, in the models' order."""
    same = measured_already(before, entry, _model_of) - {_model_of(entry)}
    kept = [e for e in before if _model_of(e) in same]
    return sorted([*kept, entry], key=lambda e: MODELS.index(_model_of(e)))


def _model_of(entry: Entry) -> str:
    return str(entry["model"])


def main() -> None:
    """Measures all models, or those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: all")
    for name in parser.parse_args().models or MODELS:
        try:
            entry: Entry = {**measure(name), **asdict(provenance())}
        except RutcError as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            continue
        print({k: v for k, v in entry.items() if k not in ("versions", "features")}, flush=True)
        save(RESULTS, beside(load(RESULTS), entry))
        page = ROOT / "docs" / "cost.md"
        page.write_text(with_models(page.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
