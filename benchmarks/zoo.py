"""`python -m benchmarks.zoo`: the zoo's models in rutc and its peers, in turns.

Every model is compiled, checked against ONNX Runtime, and timed in turns with the peers and with a
loop of multiply-adds, at 1 and 2 threads. Results are kept in benchmarks/results/zoo.json, one
entry for each model, thread count and machine; docs/benchmarks.md, the plots in it and the
README's table are made from them. A run replaces what it measures and keeps the rest:

    python -m benchmarks.zoo
    python -m benchmarks.zoo mobilenet_v2 light_squeezenet --peers onnxruntime iree tvm

On a machine that has other work, all is compiled first, and only the turns need it for themselves:

    python -m benchmarks.zoo mobilenet_v2 --prepare FOLDER
    python -m benchmarks.zoo mobilenet_v2 --prepared FOLDER
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import onnx

from benchmarks import readme
from benchmarks.layout import by_machine
from benchmarks.line_times import between
from benchmarks.machine import ROOT, provenance
from benchmarks.peak import measured_peaks, run_peak
from benchmarks.peers import Inputs, peer_jobs
from benchmarks.plot import draw
from benchmarks.protocol import Halves, Page, compiled, medians, timed, told, write
from benchmarks.store import Entry
from benchmarks.zoo_page import page
from rutc.driver.compiler import Options
from rutc.errors import RutcError, UserError
from rutc.models.zoo import Model, find, zoo
from rutc.runtime import ModelError
from rutc.verify.bench import room_for, rutc_job
from rutc.verify.interleaved import Job
from rutc.verify.reference import Reference

THREADS = (1, 2)


def case_name(model: str, threads: int) -> str:
    """Returns the name of a case."""
    return f"{model}, {threads} thread{'s' if threads > 1 else ''}"


CASES = {case_name(model.name, n): (model.name, n) for model in zoo() for n in THREADS}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one model and thread count: times, and seconds until each was ready."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(name, Path(folder))
        return take(name, Path(folder), seconds, peers)


def prepare(name: str, folder: Path) -> None:
    """Compiles and checks a case's model in a folder, or writes there why it does not compile."""
    found, threads = CASES[name]
    facts = _facts(name, folder)
    if facts.exists():
        return
    model = find(found)
    folder.mkdir(parents=True, exist_ok=True)
    told_of: Entry
    try:
        write_static(model, _model(name, folder))
        options = Options(shapes=dict(model.shapes))
        made = compiled(_model(name, folder), model.inputs(0), options, threads)
        told_of = {"flops": made.flops, **made.facts}
    except (RutcError, ModelError) as error:
        told_of = _error(error)
    facts.write_text(json.dumps(told_of | {"commit": provenance().commit}), encoding="utf-8")


def take(name: str, folder: Path, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a case that `prepare` was asked for, in turns.

    Raises:
        UserError: it was not.
    """
    found, threads = CASES[name]
    if not _facts(name, folder).exists():
        raise UserError(f"{name} is not prepared in {folder}")
    facts: Entry = json.loads(_facts(name, folder).read_text(encoding="utf-8"))
    entry: Entry = {"model": found, "threads": threads}
    if "error" in facts:
        return entry | asdict(provenance()) | facts
    try:
        return entry | _timed(name, _model(name, folder), seconds, peers) | facts
    except (RutcError, ModelError) as error:
        return entry | asdict(provenance()) | _error(error)


def _timed(name: str, path: Path, seconds: float, peers: Sequence[str]) -> Entry:
    found, threads = CASES[name]
    inputs: Inputs = find(found).inputs(0)
    library = path.with_suffix(".so")
    room = room_for(library, inputs)
    jobs = {
        "rutc": rutc_job(library, threads, inputs, room),
        **peer_jobs(peers, path, threads, inputs, room),
        "peak": Job(run_peak, ("native",)),
    }
    with between(threads) as lines:
        turns = timed(jobs, seconds)
    gflops = measured_peaks().registers.flops / medians(turns)["peak"] / 1e3
    ran = {name: m for name, m in turns.items() if m.latency is not None and name != "peak"}
    return {
        "peak_gflops": round(gflops * threads, 1),
        "times": {name: asdict(m.latency) for name, m in ran.items() if m.latency is not None},
        "ready_s": {name: round(m.ready_s, 2) for name, m in ran.items() if name != "rutc"},
        **lines,
        **told(turns),
    }


def _model(name: str, folder: Path) -> Path:
    """The file of a case's model; the library lies beside it."""
    return folder / f"{CASES[name][0]}.onnx"


def _facts(name: str, folder: Path) -> Path:
    """What is told of a case beside times; written last."""
    return folder / f"{name}.json"


def _error(error: Exception) -> Entry:
    return {"error": str(error).splitlines()[0]}


def write_static(model: Model, path: Path) -> None:
    """Writes the model with the shapes of its inputs fixed, which every peer may then use.

    A model that ONNX Runtime does not load so (a branch for other sizes contradicts them) is
    written as it is.
    """
    proto = onnx.load(model.obtain())
    for value in proto.graph.input:
        if value.name in model.shapes:
            tensor = value.type.tensor_type
            tensor.shape.CopyFrom(onnx.TensorShapeProto())
            for extent in model.shapes[value.name]:
                tensor.shape.dim.add(dim_value=extent)
    path.write_bytes(proto.SerializeToString())
    try:
        Reference(path, 1, optimise=False)
    except UserError:
        path.write_bytes(model.obtain().read_bytes())


def key(entry: Entry) -> str:
    """Returns the case of an entry."""
    return case_name(str(entry["model"]), int(str(entry["threads"])))


def write_pages(entries: Sequence[Entry]) -> None:
    """Writes the page, the plots of the machine that is first in it, and the README's table."""
    write("benchmarks", page(entries))
    if entries:
        draw(by_machine(entries)[0], ROOT / "docs")
    readme.write(entries)


PAGE = Page(
    "zoo",
    __doc__,
    list(CASES),
    measure,
    key,
    write_pages,
    peers=("onnxruntime", "openvino"),
    loops=1,
    prepare_s=15.0,
    halves=Halves(prepare, take),
)

if __name__ == "__main__":
    PAGE.main()
