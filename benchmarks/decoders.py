"""`python -m benchmarks.decoders`: steps of a decoder, beside llama.cpp and ONNX Runtime.

A Llama of 100 million weights that are read for a token (`benchmarks.decoder_models`) reads one
after 32, 512 and 1,024 others, and prompts of 128 and 512 tokens. rutc's caches are states of the
session; llama.cpp has one of its own, in 16 bits; ONNX Runtime has one buffer for past and present
where attention is one operator, and takes caches and gives longer ones where it is spelled out. A
pass over as much memory as the weights and the caches take goes in turns with steps of one token.
All compute the logits after every token that they read. Results are kept in
benchmarks/results/decoders.json, and docs/decoders.md is written from them.

llama.cpp is not among the packages of this project: `benchmarks.llama` says where it is looked for.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx

from benchmarks import layout, llama
from benchmarks.decoder_models import BITS, Sizes, onnx_model, weights_of, write_gguf
from benchmarks.line_times import between
from benchmarks.peak import run_reading
from benchmarks.peers import run_in_one_buffer
from benchmarks.protocol import Page, compiled, medians, timed, told, write
from benchmarks.store import Entry, case_of
from rutc.driver.compiler import Options
from rutc.verify.bench import room_for, run_onnxruntime, rutc_job
from rutc.verify.interleaved import Job

KINDS = ("f32", "bf16", "f16", "int8", "int4")
PASTS = (32, 512, 1024)
PROMPTS = (128, 512)


@dataclass(frozen=True, slots=True)
class Step:
    """So many tokens that a decoder reads at once, after so many others, on so many threads."""

    kind: str
    past: int
    read: int
    threads: int

    @property
    def name(self) -> str:
        """What rows of the page call it."""
        read = f"after {self.past}" if self.read == 1 else f"prompt of {self.read}"
        return f"{self.kind} {read} tokens, {self.threads} thread{'s' * (self.threads > 1)}"


STEPS = [
    Step(kind, past, read, threads)
    for kind in KINDS
    for threads in (1, 2)
    for past, read in (*((past, 1) for past in PASTS), *((0, read) for read in PROMPTS))
]
CASES = {step.name: step for step in STEPS}
WHOLE = Sizes()
LLAMA, GROUPED, SPELLED_OUT, MEMORY = "llama.cpp", "onnxruntime", "onnxruntime, plain", "memory"


@dataclass(frozen=True)
class Decoder:
    """A decoder whose weights are of one kind, compiled, and as its peers take it."""

    sizes: Sizes
    kind: str
    folder: Path
    library: Path
    facts: Entry

    @property
    def model(self) -> Path:
        """The model that rutc is given: rounding to bf16 is its own."""
        return self.folder / "model.onnx"

    @property
    def spelled_out(self) -> Path:
        """The model whose attention is spelled out; int8 is what `quantize_dynamic` makes of it."""
        return self.folder / "spelled_out.onnx"

    @property
    def gguf(self) -> Path:
        """The weights for llama.cpp, where it is installed."""
        return self.folder / "model.gguf"

    @property
    def dtype(self) -> np.dtype:
        """The type of caches."""
        return np.dtype(np.float16 if self.kind == "f16" else np.float32)

    def inputs(self, past: int, read: int = 1, *, grouped: bool = True) -> dict[str, np.ndarray]:
        """Returns random caches of so many tokens, and the ones of `tokens` that are read next."""
        draw = np.random.default_rng(past)
        sizes = self.sizes
        shape = (1, sizes.groups, past, sizes.head)
        names = [f"past.{k}.{n}" for k in range(sizes.layers) for n in ("key", "value")]
        caches = {n: draw.standard_normal(shape, np.float32).astype(self.dtype) for n in names}
        length = {"position_ids": np.array([[past]])}
        if grouped:
            length = {"attention_mask": np.ones((1, past + read), np.int64)}
        return {"input_ids": np.array([tokens(sizes, past, read)[past:]]), **length, **caches}


def tokens(sizes: Sizes, past: int, read: int = 1) -> list[int]:
    """Returns as many tokens and those that are read after them."""
    found: list[int] = np.random.default_rng(past).integers(0, sizes.words, past + read).tolist()
    return found


def decoder(folder: Path, sizes: Sizes, kind: str) -> Decoder:
    """Returns a decoder in a folder, compared with ONNX Runtime after 32 tokens.

    The sizes of a prompt stay open, and those of the caches, as somebody has them who generates
    text; nothing says that most steps are of one token.
    """
    weights = weights_of(sizes)
    stored = "f32" if kind == "bf16" else kind
    options = Options(
        precision="bf16" if kind == "bf16" else "fp32",
        dims={"seq": (1, 512), "past": (0, sizes.longest - 1, 1, 512), "total": "past+seq"},
        states={"past.*": "present.*"},
    )
    made = Decoder(sizes, kind, folder, folder / "model.so", {})
    onnx.save(onnx_model(sizes, weights, stored), made.model)
    if stored in ("f32", *BITS):
        plain = "f32" if kind == "int8" else stored
        onnx.save(onnx_model(sizes, weights, plain, grouped=False), made.spelled_out)
        if kind == "int8":
            _quantise(made.spelled_out)
    if llama.folder() is None:
        print(llama.MISSING, file=sys.stderr)
    else:
        write_gguf(made.gguf, sizes, weights, kind)
    facts = compiled(made.model, made.inputs(PASTS[0]), options).facts
    return Decoder(sizes, kind, folder, made.library, facts)


def _quantise(path: Path) -> None:
    """Has ONNX Runtime quantise the weights of a model to 8 bits, and its rows at run time."""
    from onnxruntime.quantization import quantize_dynamic

    whole = path.with_name("whole.onnx")
    path.rename(whole)
    # Shape inference knows no types behind operators that are not ONNX's own.
    told = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(whole, path, op_types_to_quantize=["MatMul"], extra_options=told)
    whole.unlink()


@lru_cache(maxsize=1)
def _decoder(kind: str) -> tuple[Decoder, object]:
    """The decoder of a kind, whose folder goes when another one is asked for."""
    folder = tempfile.TemporaryDirectory()
    return decoder(Path(folder.name), WHOLE, kind), folder


def jobs(made: Decoder, step: Step, peers: Sequence[str]) -> dict[str, Job]:
    """Returns the jobs of rutc, of a pass over memory, and of the peers that take the decoder.

    Attention is spelled out for a single token, and only that is bound by memory.
    """
    past, threads, longest = step.past, step.threads, made.sizes.longest
    inputs, single = made.inputs(past, step.read), step.read == 1
    found = {"rutc": rutc_job(made.library, threads, inputs, room_for(made.library, inputs))}
    if single:
        caches = made.sizes.cache_bytes(past, made.dtype.itemsize)
        found[MEMORY] = Job(run_reading, (made.sizes.read_bytes(made.kind) + caches, threads))
    if LLAMA in peers and made.gguf.is_file():
        known = tokens(made.sizes, past, step.read)
        arguments = (made.gguf, threads, known[:past], known[past:], longest)
        found[LLAMA] = Job(llama.prepare_llama, arguments)
    if GROUPED in peers and made.kind != "bf16":
        found[GROUPED] = Job(run_in_one_buffer, (made.model, threads, inputs, longest))
    if SPELLED_OUT in peers and made.spelled_out.is_file() and single:
        plain = made.inputs(past, grouped=False)
        longer = {n.replace("past", "present"): x for n, x in plain.items() if n[:4] == "past"}
        places = {
            n: (str(x.dtype), (*x.shape[:2], past + 1, x.shape[3])) for n, x in longer.items()
        }
        places["logits"] = (str(made.dtype), (1, 1, made.sizes.words))
        found[SPELLED_OUT] = Job(run_onnxruntime, (made.spelled_out, threads, plain, places))
    return found


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case: median milliseconds of a step."""
    step = CASES[name]
    made, _ = _decoder(step.kind)
    with between(step.threads) as lines:
        found = timed(jobs(made, step, peers), seconds)
    ms = {peer: round(us / 1000, 2) for peer, us in medians(found).items()}
    entry = {**made.facts, "ms": ms} | lines | told(found)
    if LLAMA in ms:
        versions = entry["versions"]
        assert isinstance(versions, dict)
        entry["versions"] = {LLAMA: llama.version(), **versions}
    return entry


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.decoders`. Milliseconds of a step that reads one token,",
        "of a Llama with 100 million weights that are read for it (width 768, 12 layers, 12 heads",
        "on 4 of keys and values, 32000 words; random weights), in processes in turns, each",
        "stopped but for its own. rutc is compiled for prompts of up to 512 tokens and caches of",
        "up to 2047, which are states of its session (`states.md`). *One buffer* is ONNX Runtime",
        "with attention as one operator (`GroupQueryAttention`), of the same file, and one buffer",
        "for past and present; *plain* has attention spelled out, whose caches are copied into",
        "longer ones, in int8 as `quantize_dynamic` makes it. llama.cpp has the same weights as",
        "F32, BF16, F16, Q8_0 and Q4_0, its cache in 16 bits; rutc's and ONNX Runtime's are of 32",
        "but in f16; beside bf16 plain is f32. int8 and int4 have a float32 scale for 32 weights",
        "(`MatMulNBits`). A pass over memory reads as many bytes as weights and caches; *share* is",
        "its time over rutc's. Prompts are read by the same libraries, from empty caches, and all",
        "give the logits after each token.",
        *layout.LINES,
    )
    return layout.page("Decoders, a token at a time", said, entries, _table, method=())


def _table(entries: Sequence[Entry]) -> list[str]:
    single = [entry for entry in entries if CASES[case_of(entry)].read == 1]
    prompts = [entry for entry in entries if CASES[case_of(entry)].read > 1]
    titles = "case | rutc | llama.cpp | one buffer | plain | memory | share | commit: runs"
    lines = layout.table(titles, single, _row) if single else []
    if prompts:
        titles = "case | rutc | llama.cpp | one buffer | commit: runs"
        lines += ["", *layout.table(titles, prompts, _prompt)]
    return lines


def _row(entry: Entry) -> list[object]:
    ms = entry["ms"]
    assert isinstance(ms, dict)
    times = _times(entry, "rutc", LLAMA, GROUPED, SPELLED_OUT, MEMORY)
    return [layout.marked(entry), *times, f"{100 * ms[MEMORY] / ms['rutc']:.0f} %"]


def _prompt(entry: Entry) -> list[object]:
    return [layout.marked(entry), *_times(entry, "rutc", LLAMA, GROUPED)]


def _times(entry: Entry, *peers: str) -> list[object]:
    """The milliseconds of each peer, where it has some."""
    ms = entry["ms"]
    assert isinstance(ms, dict)
    return [ms.get(name, "-") for name in peers]


PAGE = Page(
    "decoders",
    __doc__,
    list(CASES),
    measure,
    case_of,
    lambda entries: write("decoders", page(entries)),
    peers=(LLAMA, GROUPED, SPELLED_OUT),
    loops=1,
    seconds=2.0,
    prepare_s=20.0,
)

if __name__ == "__main__":
    PAGE.main()
