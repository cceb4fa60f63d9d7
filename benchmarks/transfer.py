"""How many trials it saves to know other kernels: `python -m benchmarks.tuning --transfer`.

Kernels of several families are searched first as if nothing was known of any kernel: by what the
search learns of its own trials. How many trials reach 95 % of the best that this finds is counted
for that search and for others, among them that of `rutc tune`, which begins with the default
schedule and is judged by what was learned of other families. Results go to
benchmarks/results/tuning_transfer.json and docs/tuning_speed.md.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from random import Random
from statistics import geometric_mean, median
from typing import Any

from benchmarks import layout, store
from benchmarks.held_out import families_without, points_without, ranker_without
from benchmarks.kernel_source import largest
from benchmarks.machine import ROOT, provenance
from benchmarks.ratios import LONG, Ratios
from benchmarks.store import Entry, case_of
from benchmarks.train import family
from rutc.driver.tuning.schedule_search import BATCH, kernel_after
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.cost_model import CostModel
from rutc.tuner.search.nest_features import features
from rutc.tuner.search.ranker import Ranker
from rutc.tuner.search.search import Candidate, Judge, Judged, Search
from rutc.tuner.search.seeds import Seed, first_proposals, point_on_record

RESULTS = ROOT / "benchmarks" / "results" / "tuning_transfer.json"
CASES = (
    "product 256x256x256",
    "operator Softmax of scores",
    "depthwise 3x3 28x28 192->192",
    "QDQ conv 1x1 28x28 512->128",
    "operator MaxPool 3x3/2",
    "operator ReduceMean of tokens",
    "operator Gelu",
    "conv 3x3/2 224x224 3->32",
    "dynamically quantised product 16x768x768",
    "operator Transpose of shuffled channels",
    "QDQ depthwise 3x3 14x14 576->576",
    "operator Softmax of channels",
    "operator Attention",
    "operator Resize linear of a photo",
    "dynamically quantised conv 3x3/2 28x28 128->128",
    "operator ArgMax of rows of 1000",
    "MatMulInteger 128x768x768 uint8 by int8",
    "operator Pad with zeros",
    "operator Einsum of scores",
    "operator GRU batch 8, reset after",
    "operator GlobalAveragePool",
    "operator STFT",
    "operator Concat of channels",
)
TRIALS, OTHERS = 1000, 200
"""Of the search that knows nothing, and of others where they do not get there before."""
SECONDS, OTHERS_SECONDS = 45.0, 10.0
"""Of the processor's time: each tries no schedule later."""
ANEW = 64
"""Trials for each of which schedules are drawn and judged anew, as `rutc tune` does; after that
once in a batch of trials: it takes several times as long as the trial itself."""
GOOD = 0.95
"""The share of the best that counts as found."""
IDLE = 100
"""A search that comes so often by code that is known already has seen what there is."""
BEST = 12
"""The fastest, of which the best is told by timing them again."""
AGAIN = 2 * LONG
"""Samples of a schedule that is timed again."""
WANTED = 10.0
"""How many times as many trials are to be saved."""


class Blank:
    """A judge that knows nothing: all kernels are equal until a search learns of its trials."""

    def __init__(self, machine: Machine) -> None:
        """For code of a machine."""
        self._machine = machine

    def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
        """Returns the same cycles for each, and its features."""
        rows = [features(summarise(k, self._machine).regions, self._machine) for k in kernels]
        return [Judged(0.0, tuple(map(float, row))) for row in rows]


@dataclass(frozen=True)
class Way:
    """A way to search: what it begins with, and what judges."""

    said: str
    default: bool
    """Whether the default schedule is the first trial."""
    learned: bool = False
    """Whether what was learned of other kernels judges."""
    seeded: bool = False
    """Whether the fastest schedules of other kernels come next."""
    at_random: bool = False
    """Whether all trials are drawn at random."""


WAYS = {
    "own": Way("at random, then by its own trials", default=False),
    "random": Way("at random", default=False, at_random=True),
    "own, default first": Way("the default schedule, then by its own trials", default=True),
    "learned alone": Way("at random, then by other families", default=False, learned=True),
    "transfer": Way(
        "the default schedule, then by other families: `rutc tune`", default=True, learned=True
    ),
    "transfer and seeds": Way(
        "the same, with seeds: `rutc tune --seeds`", default=True, learned=True, seeded=True
    ),
}
"""The first is the search without transfer, whose best the others are measured by."""
FIRST = next(iter(WAYS))


@dataclass
class Timed:
    """What is known of the schedules of a kernel: equal code is timed once, whoever asks for it."""

    bench: Ratios
    known: dict[str, float | None] = field(default_factory=dict)
    """Ratios to the default schedule, by the code."""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    sure: set[str] = field(default_factory=set)
    """What was timed for longer."""
    seconds: float = 0.0
    """All that the bench took."""
    least: float = inf

    def ratio(self, kernel: Kernel) -> tuple[str, float | None]:
        """What tells a kernel's code from others, and its ratio to the default schedule's."""
        code = str(kernel)
        if code not in self.known:
            found = self.bench.of(kernel, self.least)
            self.seconds += found.seconds
            self.known[code], self.kernels[code] = found.ratio, kernel
            self.least = min(self.least, self.order(code))
        return code, self.known[code]

    def order(self, code: str) -> float:
        """The ratio of what is known; infinity of what failed."""
        ratio = self.known[code]
        return inf if ratio is None else ratio

    def surely(self, codes: Sequence[str]) -> float:
        """The least ratio of some, each timed again: the best of many times is luck, too."""
        for code in codes:
            if code not in self.sure:
                self.sure.add(code)
                self.known[code] = self.bench.of(self.kernels[code], inf, AGAIN).ratio
        return min(map(self.order, codes))

    def until(self, codes: Sequence[str], goal: float) -> int | None:
        """After how many trials one is surely as fast; None: none is."""
        near = ((n, code) for n, code in enumerate(codes, 1) if self.order(code) <= goal)
        return next((n for n, code in near if self.surely([code]) <= goal), None)


@dataclass
class Searched:
    """A search's trials: the code of each, no code twice."""

    search: Search
    way: Way
    timed: Timed
    seeds: Sequence[Seed] = ()
    codes: list[str] = field(default_factory=list)
    best: Candidate | None = None

    @property
    def spent(self) -> float:
        """Seconds of the processor, of this process and of the bench: others do not count."""
        return time.process_time() + self.timed.seconds

    @property
    def best_code(self) -> str:
        """That of the best."""
        assert self.best is not None
        return str(self.best.kernel)

    def run(self, most: int, seconds: float, enough: Callable[[str], bool]) -> None:
        """Tries up to so many schedules, until the code of one is good enough or time is over."""
        end = self.spent + seconds
        least, idle, queue = inf, 0, self._first()
        while len(self.codes) < most and idle < IDLE:
            if not queue and self.spent < end:
                queue = self._next()
            if not queue:
                return
            c = queue.pop(0)
            if self.search.seen(c):
                idle += 1
                continue
            code, ratio = self.timed.ratio(c.kernel)
            self.search.observe(c, ratio)
            if code in self.codes:
                idle += 1
                continue
            idle = 0
            self.codes.append(code)
            if ratio is not None and ratio < least:
                least, self.best = ratio, c
                if enough(code):
                    return

    def _first(self) -> list[Candidate]:
        """What is tried before anything is known."""
        default = self.search.default
        assert default is not None
        if self.way.default:
            return [default, *first_proposals(self.search, self.seeds)]
        return [c for _ in range(BATCH) if (c := self.search.drawn()) is not None]

    def _next(self) -> list[Candidate]:
        """As `rutc tune` does: what is next is chosen by all that was measured by then."""
        if self.way.at_random:
            return self._first()
        anew = len(self.codes) < ANEW or len(self.codes) % BATCH == 0
        return (self.search.propose(1, ()) if not anew else []) or self.search.propose(1)


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a case: after how many trials each way is so good."""
    machine = native_target().machine.alone()
    kernel, constants = largest(name, machine)
    hidden = families_without(name, kernel, constants)
    ranker = ranker_without(hidden)
    own = spaces(kernel, machine, constants)
    seeds = tuple(_seeds(name, hidden))
    default = Search(
        kernel, own, CostModel(machine, ranker=ranker), kernel_after, Random(0)
    ).default
    assert default is not None
    with Ratios(default.kernel, native_target().machine) as bench:
        timed = Timed(bench)
        found = {
            way: Searched(
                Search(
                    kernel,
                    own,
                    _judge(how, machine, ranker),
                    kernel_after,
                    Random(f"{name} {way}"),
                ),
                how,
                timed,
                seeds if how.seeded else (),
            )
            for way, how in WAYS.items()
        }
        first, *others = found.values()
        start = first.spent
        first.run(TRIALS, SECONDS, lambda _: False)
        trial_s = (first.spent - start) / max(len(first.codes), 1)
        if first.best is None:
            raise UserError(f"no schedule of {name} runs")
        best = timed.surely(sorted(first.codes, key=timed.order)[:BEST])
        usual = timed.surely([timed.ratio(default.kernel)[0]])
        for other in others:
            other.run(OTHERS, OTHERS_SECONDS, lambda code: timed.surely([code]) <= best / GOOD)
        until = {way: timed.until(s.codes, best / GOOD) for way, s in found.items()}
        least = timed.surely(sorted(timed.known, key=timed.order)[:BEST])
    ended = min((s for s in found.values() if s.best), key=lambda s: timed.order(s.best_code))
    assert ended.best is not None
    return {
        "until": until,
        "tried": {way: len(s.codes) for way, s in found.items()},
        "gain": round(usual / best, 4),
        "more": round(best / least, 4),
        "trial_s": round(trial_s, 4),
        "size": min(first.search.size, 1e18),
        "seeds": len(seeds),
        "hidden": sorted(hidden & {family(case) for case in CASES}),
        "points": points_without(hidden),
        "seed": {
            "template": ended.best.template,
            "point": point_on_record(ended.best),
            "features": default.judged.features,
        },
        **asdict(provenance()),
    }


def _judge(way: Way, machine: Machine, ranker: Ranker) -> Judge:
    return CostModel(machine, ranker=ranker) if way.learned else Blank(machine)


def _seeds(name: str, hidden: frozenset[str]) -> list[Seed]:
    """What was found of kernels of other families."""
    entries = [e for e in store.load(RESULTS) if "seed" in e and case_of(e) != name]
    return [
        Seed(case_of(e), **e["seed"])  # type: ignore[arg-type]
        for e in entries
        if family(case_of(e)) not in hidden
    ]


def section(entries: Sequence[Entry]) -> list[str]:
    """Returns the part of the page on transfer."""
    known: list[dict[str, Any]] = [e for e in entries if "until" in e]
    if not known:
        return []
    tried, points = [e["tried"][FIRST] for e in known], [e["points"] for e in known]
    return [
        "",
        "## What it saves to know other kernels",
        "",
        "Written by `python -m benchmarks.tuning --transfer`. The largest kernel of each case, at",
        "most one of a family, is searched first as if nothing was known of any kernel: the first",
        f"{BATCH} schedules are drawn at random, and then what the search learns of its own trials",
        "judges (the Gaussian process of `tuner/search/search.py`, over features of the loop nest,",
        f"with no model before it). It ends after {TRIALS} trials, when it comes by nothing new,",
        f"or after {SECONDS:g} s of the processor, which is {min(tried)} to {max(tried)} trials, "
        f"{median(tried):g} in",
        f"the median. For its first {ANEW} trials schedules are drawn and judged anew before each,",
        f"later before every {BATCH}.",
        f"Other ways are told to find {GOOD:.0%} of the best of that, in {OTHERS}",
        f"trials or {OTHERS_SECONDS:g} s. Schedules of equal code are one trial. What judges",
        "by other families was taught without the kernel's own, by "
        f"{min(points)} to {max(points)} points;",
        "seeds are what was found of kernels of other families. The analytic estimate, which it",
        "corrects, was fitted to kernels of all families. Operands are in the caches. Times are of",
        "the thread, in turns with the default schedule, and what decides is timed twice.",
        "",
        *_ways(known),
        "",
        *_verdict(known),
        "",
        *_by_kernel(known),
        "",
        f"Measured on {', '.join(dict.fromkeys(map(layout.machine_title, known)))}:",
        "",
        *layout.measured_on(known, timed=False),
    ]


def _ways(known: Sequence[dict[str, Any]]) -> list[str]:
    """The table of ways."""
    hard = [e for e in known if e["gain"] > 1 / GOOD]
    lines = [
        "Trials until then, medians; the last column is of the "
        f"{len(hard)} kernels for which the default schedule is not so good:",
        "",
        "| begins with, judged by | trials | kernels that got there | times fewer than without"
        " transfer, by medians | by kernels, median | trials of those |",
        "|---|---|---|---|---|---|",
    ]
    without = _trials(known, FIRST)
    for way, how in WAYS.items():
        own, others = _trials(known, way), _trials(hard, way)
        each = _fewer(known, way)
        lines.append(
            f"| {how.said} | {_number(median(own))} | {sum(n < inf for n in own)} of {len(own)} |"
            f" {median(without) / median(own):.1f} | {each:.1f} |"
            f" {_number(median(others or [1.0]))} |"
        )
    return lines


def _verdict(known: Sequence[dict[str, Any]]) -> list[str]:
    """What the figures say."""
    without, gains = median(_trials(known, FIRST)), [e["gain"] for e in known]
    ratio, seconds = without / median(_trials(known, "transfer")), [e["trial_s"] for e in known]
    each = _fewer(known, "transfer")
    many = [e for e in known if (e["until"][FIRST] or inf) >= WANTED]
    return [
        f"Wanted are {WANTED:g} times fewer trials with transfer than without. They are "
        f"{ratio:.1f} times fewer, in medians of {len(known)} kernels,",
        f"and {each:.1f} times in the median of kernels' own ratios:",
        "that is reached." if min(ratio, each) >= WANTED else "that is not reached.",
        "No way needs less than one trial, so that it is no more than what the search without "
        "transfer needs.",
        *([_of_many(many)] if many else []),
        f"The default schedule alone is so good for {sum(g <= 1 / GOOD for g in gains)} kernels. "
        f"The best is {geometric_mean(gains):.3f} times as fast in geometric mean, "
        f"{max(gains):.2f} at most.",
        f"A trial without transfer takes {median(seconds):.2f} s of the processor in the median, "
        f"{max(seconds):.2f} at most: proposing, compiling and timing.",
    ]


def _of_many(known: Sequence[dict[str, Any]]) -> str:
    """What the figures say of kernels of which that many trials can be saved."""
    return (
        f"Of {len(known)} kernels it needs {WANTED:g} trials or more: {WANTED:g} times fewer are "
        f"possible there, and they are {_fewer(known, 'transfer'):.1f} times fewer in the median."
    )


def _by_kernel(known: Sequence[dict[str, Any]]) -> list[str]:
    """The table of kernels."""
    lines = [
        "*Best* is how many times as fast as the default schedule the best without transfer is, "
        "*more* how many times as fast as that the best of all ways is.",
        "",
        f"| kernel of | points | trials | best | more | {' | '.join(WAYS)} |",
        "|---|---|---|---|---|" + "---|" * len(WAYS),
    ]
    for e in known:
        until = " | ".join(
            _number(n) if (n := e["until"][way]) else f"more than {e['tried'][way]}" for way in WAYS
        )
        lines.append(
            f"| {case_of(e)} | {e['size']:.0e} | {e['tried'][FIRST]} | {e['gain']:.3f} |"
            f" {e['more']:.3f} | {until} |"
        )
    models = sorted({", ".join(e["hidden"]) for e in known})
    return [
        *lines,
        "",
        "Each kernel is judged by the model that has not seen its family. Of these, the models "
        "have not seen:",
        "",
        *(f"- {families}" for families in models),
    ]


def _trials(known: Sequence[dict[str, Any]], way: str) -> list[float]:
    """The trials that a way needs of each kernel; infinity where it does not get there."""
    return [e["until"][way] or inf for e in known]


def _fewer(known: Sequence[dict[str, Any]], way: str) -> float:
    """How many times fewer trials a way needs than the search without transfer: the median."""
    pairs = zip(_trials(known, FIRST), _trials(known, way), strict=True)
    return median([1.0 if a == b else a / b for a, b in pairs])


def _number(trials: float) -> str:
    return f"{trials:g}" if trials < inf else "more than were tried"
