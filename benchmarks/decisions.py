"""`python -m benchmarks.decisions`: how much slower what is chosen of a graph is than what is not.

Of models of the zoo, decisions about large kernels are changed one at a time: the layout of a
value, the copies of a nest's operands, the nests of a kernel, slices and turns of kernels. A few
other choices of each are compiled, and take turns with the one that is made, on one core. What is
compared are the times of all kernels that differ. The regret of a decision is the time of what is
chosen over the least of all that are measured, less 1. Results go to
benchmarks/results/decisions.json and docs/decisions.md.
"""

import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import median, quantiles

import numpy as np

from benchmarks import layout
from benchmarks.machine import provenance
from benchmarks.protocol import Page, write
from benchmarks.store import Entry, case_of
from rutc.driver.timing.launch_times import Profiled, TimedLibrary, run_in_turns, written
from rutc.emit.targets import native_target
from rutc.errors import InternalError
from rutc.graph_opt import versions
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.neighbours import Neighbour, legal, neighbours
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.plan import Plan
from rutc.importer import import_model
from rutc.models.zoo import find
from rutc.verify.judging.compare import Value

MODELS = (
    "light_squeezenet",
    "mobilenet_v2",
    "light_shufflenet",
    "resnet50",
    "light_densenet121",
    "light_inception_v1",
    "bert_base_128",
    "minilm_l6",
    "gpt2_6l_past",
    "vit_b16",
    "unet",
    "ppocr4_det",
    "ppocr4_rec",
    "silero_vad",
    "magika",
)
DECISIONS = 10
"""Of each model."""
OTHERS = 3
"""Other choices of each decision."""
SHARE = 0.01
"""The least share of a model's time that the kernel of a decision takes."""
SECONDS = 0.4
"""For each of two artifacts that take turns; five runs at least."""


def different(
    first: TimedLibrary, second: TimedLibrary, us: Sequence[Mapping[str, float]]
) -> tuple[float, float]:
    """Returns the microseconds of what only either artifact has, for both."""
    counts = [Counter(m.symbols.values()) for m in (first, second)]
    same = {s for s, n in counts[0].items() if counts[1][s] == n}
    a, b = (sum(t for name, t in own.items() if name not in same) for own in us)
    return a, b


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a model: what was measured of its decisions."""
    machine = native_target().machine
    model = find(name)
    rng = Random(zlib.crc32(name.encode()))
    inputs = {k: v for k, v in model.inputs(0).items() if v is not None}
    graph = versions(import_model(model.source.obtain(), shapes=model.shapes), machine)[-1].graph
    found = greedy(prepare(graph), machine).realisation
    near: defaultdict[str, list[Neighbour]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        base = written(found.plan, machine, path / "base.so", keep_subnormals=True)
        large = _large(found.plan, base, _in_turns([base], SECONDS, inputs)[0])
        for n in neighbours(found, types=False):
            if n.subject in large:
                near[n.decision].append(n)
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for decision, some in near.items():
            kinds[some[0].kind].append(decision)
        decisions: Entry = {}
        # Of each kind as many, as far as there are.
        for own in kinds.values():
            rng.shuffle(own)
        while any(kinds.values()) and len(decisions) < DECISIONS:
            for own in kinds.values():
                if not own or len(decisions) >= DECISIONS:
                    continue
                decision = own.pop()
                rng.shuffle(near[decision])
                others: list[tuple[str, TimedLibrary]] = []
                for n in near[decision]:
                    other = legal(found, n)
                    if other is None or len(others) >= OTHERS:
                        continue
                    try:
                        artifact = written(
                            other.plan, machine, path / f"{len(others)}.so", keep_subnormals=True
                        )
                    except InternalError as error:
                        decisions[decision] = {"error": str(error).splitlines()[0]}
                        break
                    others.append((n.change, artifact))
                if others and decision not in decisions:
                    decisions[decision] = _measured(base, others, inputs)
    return {"decisions": decisions, **asdict(provenance())}


def _in_turns(
    artifacts: Sequence[TimedLibrary], seconds: float, inputs: Mapping[str, Value]
) -> list[dict[str, float]]:
    """Returns the median microseconds of each artifact's functions, run in turns on one thread.

    Each runs for so many seconds, about.
    """
    with ExitStack() as stack:
        profiled = [stack.enter_context(Profiled(a.library)) for a in artifacts]
        found = run_in_turns(profiled, inputs, seconds)
    return [_by_function(p.names, us) for p, us in zip(profiled, found, strict=True)]


def _by_function(names: Sequence[str], us: np.ndarray) -> dict[str, float]:
    """The median microseconds of each function, of those of steps {run, step}."""
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        steps[name].append(number)
    return {name: float(np.median(us[:, own].sum(axis=1))) for name, own in steps.items()}


def _large(plan: Plan, base: TimedLibrary, us: Mapping[str, float]) -> set[str]:
    """Returns the values of kernels that take much of a run."""
    total = sum(us.values())
    times = {name: us.get(symbol, 0.0) for name, symbol in base.symbols.items()}
    return {
        v
        for g in plan.groups()
        for v in g.computed
        if times.get(g.name, SHARE * total) >= SHARE * total
    }


def _measured(
    base: TimedLibrary, others: Sequence[tuple[str, TimedLibrary]], inputs: Mapping[str, np.ndarray]
) -> Entry:
    """Returns the regret of what the base has; each other choice takes turns with it."""
    found: list[tuple[float, float, float, str]] = []
    for change, artifact in others:
        chosen, instead = different(base, artifact, _in_turns([base, artifact], SECONDS, inputs))
        if instead:
            found.append((chosen / instead, chosen, instead, change))
    if not found:
        return {"error": "the other choices have the same kernels"}
    ratio, chosen, instead, change = max(found)
    return {
        "regret": round(max(ratio - 1, 0.0), 3),
        "chosen_us": round(chosen, 1),
        "other_us": round(instead, 1),
        "others": len(found),
        "other": change,
    }


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.decisions`. Decisions about kernels that take one per",
        f"cent of a model's time or more, each with up to {OTHERS} other choices that were drawn",
        "from all (`graph_opt/decide/neighbours.py`). An artifact with another choice takes turns",
        "with the one that rutc makes, on one core; what is compared is the time of all kernels",
        "that differ. The regret is the time of what is chosen over the least, less 1.",
    )
    return layout.page("Regret of decisions about graphs", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    rows: list[tuple[float, str, str, Entry]] = []
    for entry in entries:
        known = entry.get("decisions", {})
        assert isinstance(known, dict)
        rows += [
            (k["regret"], case_of(entry), name, k) for name, k in known.items() if "regret" in k
        ]
    if len(rows) < 2:
        return []
    rows.sort(key=lambda row: -row[0])
    regrets = [row[0] for row in rows]
    high = quantiles(regrets, n=20)[-1]
    kinds = Counter(name.split(" of ")[0] for _, _, name, _ in rows)
    lines = [
        f"{len(rows)} decisions ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}): median "
        f"regret {100 * median(regrets):.1f} %, 95th percentile {100 * high:.0f} %; "
        f"{sum(r > 0.05 for r in regrets)} above 5 %.",
        "",
        "| model | decision | chosen us | other us | regret | the best other choice |",
        "|---|---|---|---|---|---|",
    ]
    for regret, model, name, k in rows:
        if regret >= 0.02:
            change = str(k["other"]).replace("|", "\\|")
            lines.append(
                f"| {model} | {name} | {k['chosen_us']} | {k['other_us']} | {100 * regret:.0f} % | "
                f"{change} |"
            )
    return lines


PAGE = Page(
    "decisions",
    __doc__,
    MODELS,
    measure,
    case_of,
    lambda entries: write("decisions", page(entries)),
    peers=(),
    prepare_s=60.0,
    seconds=None,
)

if __name__ == "__main__":
    PAGE.main()
