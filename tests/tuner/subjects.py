"""Random kernels of all kinds, with their operands, on which schedules are tried."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from random import Random
from types import MappingProxyType

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from rutc.driver.parts.compile_job import with_schedule
from rutc.emit.kernel import parallel_loops
from rutc.emit.targets import aarch64, x86
from rutc.tensor_ir import Graph, Nest, Scatter
from rutc.tensor_ir.interpreter.interpret import interpret_values
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Kernel, Loop
from rutc.tensor_ir.layout import dense, pack
from rutc.tensor_ir.lower import Group, lower, lower_scatter
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_stmts
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from rutc.tuner.choice import Choice
from tests.emit.run_kernel import run_kernel
from tests.kernels import LONG, Case, assert_agree, cases, magnitude, unpack
from tests.machines import V3, V4

AMX = replace(x86.avx512(), features=x86.V4_FEATURES | x86.OPTIONAL_FEATURES)
MACHINES = {
    name: replace(m, l1=4 << 10, l2=64 << 10, launch_cycles=0, wake_cycles=0)
    for name, m in ({m.name: m for m in (V3, V4, aarch64.neon())} | {"amx": AMX}).items()
}
"""Machines with small caches: what depends on them then shows in small kernels."""
PRODUCT = """
graph "product"
dims i = 33, j = 96, k = 64
%a : f32{i,k} = input "a" [i, k]
%b : f32{k,j} = input "b" [k, j]
%c : f32{i,j} = sum{k} %a[i, k] * %b[k, j]
output "c" [i, j] = %c
"""
"""A product that several tests search for schedules of."""
NARROW_PRODUCT = """
graph "narrow"
dims m = {m}, n = {n}, k = {k}
%x : {left}{{k,m}} = input "x" [m, k]
%w : {right}{{k,n}} = input "w" [k, n]
%s : {sums}{{m,n}} = sum{{k}} {sums}(%x[k, m]) * {sums}(%w[k, n])
output "s" [m, n] = %s
"""
SMALL = 30_000
"""Iterations of a kernel that the interpreter takes a second for, or few."""


def product_of_bytes(m: int, n: int, k: int) -> str:
    """A product of m by k and k by n bytes, of which registers for matrices take blocks."""
    return NARROW_PRODUCT.format(m=m, n=n, k=k, left="u8", right="i8", sums="i32")


def product_of_bf16(m: int, n: int, k: int) -> str:
    """The same of numbers in bf16, summed in f32."""
    return NARROW_PRODUCT.format(m=m, n=n, k=k, left="bf16", right="bf16", sums="f32")


@dataclass(frozen=True)
class Subject:
    """A kernel, those of its buffers that may be laid out, and the elements of all before it runs.

    Axes of `arrays` are in the order of the sorted dims.
    """

    kernel: Kernel
    free: frozenset[str]
    arrays: Mapping[str, np.ndarray]
    check: Callable[[Mapping[str, np.ndarray]], None]
    """Raises AssertionError where memory is not what the kernel stores."""

    @property
    def iterations(self) -> int:
        """About how many there are of the kernel's loops."""
        found = {s.var: (s.hi - s.lo).value for s in walk_stmts(self.kernel.body) if _is_loop(s)}
        return prod(max(n, 1) for n in found.values())

    def run(self, choice: Choice, machine: Machine, parts: int | None) -> None:
        """Runs the scheduled kernel and checks what it stores: its code in `parts`, or interpreted.

        Raises:
            AssertionError: it stores something else.
        """
        scheduled = with_schedule(self.kernel, choice, self.free).kernel
        memory = laid_out(scheduled, self.arrays)
        if parts is None:
            interpret_kernel(scheduled, memory)
        else:
            run_kernel(scheduled, machine, memory, parts=parts if parallel_loops(scheduled) else 1)
        self.check(memory)


def _is_loop(s: object) -> bool:
    return isinstance(s, Loop)


def laid_out(kernel: Kernel, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The memory of a kernel's arguments."""
    found: dict[str, np.ndarray] = {}
    for b in kernel.args:
        dims = sorted(d for d, _ in b.layout.extents)
        found[b.name] = pack(arrays[b.name], dims, b.layout).copy()
    return found


def of_case(case: Case, free: frozenset[str]) -> Subject:
    """The kernel of a random group."""
    arrays = case.arrays()

    def check(memory: Mapping[str, np.ndarray]) -> None:
        case.check(memory, arrays)

    full = {v: np.full_like(arrays[v], 77) for v in case.group.stored}
    return Subject(case.kernel(), free, {**arrays, **full}, check)


def inputs_of(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Small numbers for a graph's inputs; places, `at`, are in range or just behind it."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for n in graph.inputs:
        low, high = (-3, 4) if n.out.dtype.is_signed and n.name != "at" else (0, 4)
        shape = [graph.extent(d) for d in n.axes]
        found[n.name] = rng.integers(low, high, shape).astype(n.out.dtype.numpy)
    return found


def of_text(
    text: str,
    free: frozenset[str],
    rng: Random,
    blocks: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> Subject:
    """The kernel of a graph's nests, or of its scatter, everything in the order of its axes.

    Values in `blocks` lie in such blocks of their dims.
    """
    graph = parse(text)
    verify(graph)
    extents = {d: e.value for d, e in graph.dims}
    order = {n.out.name: n.axes for n in graph.inputs} | {o.value: o.axes for o in graph.outputs}
    layouts = {v: dense(axes, extents, blocks=blocks.get(v)) for v, axes in order.items()}
    last = graph.nodes[-1]
    if isinstance(last, Scatter):
        kernel = lower_scatter(last, graph.values, layouts, extents)
    else:
        stages = tuple(n for n in graph.nodes if isinstance(n, Nest))
        shared = next(o.axes for o in graph.outputs)
        finite = frozenset(n.out.name for n in graph.inputs)
        shared = tuple(d for d in shared if all(d in s.out.dims for s in stages))
        group = Group("g", stages, shared, tuple(o.value for o in graph.outputs))
        kernel = lower(group, graph.values, layouts, extents, finite=finite)
    wanted = interpret_values(graph, inputs_of(graph, rng.randrange(1 << 32)))
    arrays = {b.name: np.full_like(wanted[b.name], 77) for b in kernel.args}
    arrays |= {n.out.name: wanted[n.out.name] for n in graph.inputs}
    if isinstance(last, Scatter):
        arrays[last.out.name] = wanted[last.base]

    def check(memory: Mapping[str, np.ndarray]) -> None:
        for o in graph.outputs:
            v = graph.values[o.value]
            got = unpack(memory[v.name], v.dims, extents, layouts[v.name])
            largest = magnitude(wanted[v.name])
            assert_agree(v.name, got, wanted[v.name], "exp(" not in text, 64, largest)

    return Subject(kernel, free, arrays, check)


# -- kernels that random groups seldom are ------------------------------------------------------
def convolution(rng: Random) -> str:
    """A depthwise convolution, or pooling, of pictures in one of two orders."""
    sizes = {"c": rng.choice([1, 3, 8, 20]), "y": rng.randint(1, 7), "x": rng.randint(4, 20)}
    step, before, taps = rng.randint(1, 2), rng.randint(0, 1), rng.randint(2, 3)
    if rng.random() < 0.25:
        # Too long to be written out.
        sizes, step, before, taps = {"c": 2, "y": 3, "x": rng.randint(5, 9)}, 1, 0, 9
    sizes |= {d: step * sizes[o] + taps - 1 - before for d, o in (("p", "y"), ("q", "x"))}
    dtype = rng.choice(["f32", "f32", "i32", "bf16"])
    at = f"%v[c, p={step}*y+ky-{before}, q={step}*x+kx-{before} else 0]"
    axes = rng.choice([("c, p, q", "c, y, x"), ("p, q, c", "y, x, c")])
    weighted = rng.random() < 0.6 and dtype != "bf16"
    weights = f'%w : {dtype}{{c,kx,ky}} = input "w" [c, ky, kx]' if weighted else ""
    body = f"{at} * %w[c, kx, ky]" if weighted else at
    how = "sum" if weighted else rng.choice(["sum", "max"])
    after = rng.choice(["%o[c, x, y]", "exp(%o[c, x, y])"]) if dtype == "f32" else "%o[c, x, y]"
    dims = ", ".join(f"{d} = {n}" for d, n in sizes.items())
    return f"""
graph "windows"
dims {dims}, ky = {taps}, kx = {taps}
%v : {dtype}{{c,p,q}} = input "v" [{axes[0]}]
{weights}
%o : {dtype}{{c,x,y}} = {how}{{ky,kx}} {body}
%r : {dtype}{{c,x,y}} = {after}
output "r" [{axes[1]}] = %r
"""


def products(rng: Random) -> str:
    """Products of bytes, or of numbers of 16 bits, with constants."""
    b, m = rng.choice([1, 1, 2]), rng.choice([4, 5, 8, 17, 20])
    # Matrix registers take whole blocks, of which the interpreter refuses to read the padding.
    n = rng.choice([16, 16, 32, 48]) if b == 1 else 16
    dtype = rng.choice(["u8", "i8", "bf16"])
    k = rng.choice([32, 36]) if dtype != "bf16" else rng.choice([16, 18, 32])
    total, other = ("f32", "bf16") if dtype == "bf16" else ("i32", "i8")
    axes = rng.choice(["b, m, n", "b, n, m", "m, n, b"])
    after = rng.choice(["%s[b, m, n] + 1", "max(%s[b, m, n], 0)"])
    return f"""
graph "products"
dims b = {b}, m = {m}, n = {n}, k = {k}
%x : {dtype}{{b,k,m}} = input "x" [b, m, k]
%w : {other}{{k,n}} = input "w" [k, n]
%s : {total}{{b,m,n}} = sum{{k}} {total}(%x[b, k, m]) * {total}(%w[k, n])
%r : {total}{{b,m,n}} = {after}
output "r" [{axes}] = %r
"""


def moved(rng: Random) -> str:
    """A transpose, also of few channels."""
    sizes = [rng.choice([2, 3, 4, 8, 17, 33]) for _ in range(3)]
    source, target = (rng.sample("abc", 3) for _ in range(2))
    dtype = rng.choice(["f32", "u8", "i16", "f64"])
    return f"""
graph "moved"
dims a = {sizes[0]}, b = {sizes[1]}, c = {sizes[2]}
%x : {dtype}{{a,b,c}} = input "x" [{", ".join(source)}]
%y : {dtype}{{a,b,c}} = %x[a, b, c] + 1
output "y" [{", ".join(target)}] = %y
"""


def chosen(rng: Random) -> str:
    """A choice by the index of a loop, or a loop that goes on elsewhere from some place on."""
    c, t, k = rng.choice([4, 20, 32]), rng.randint(2, 8), rng.randint(2, 4)
    place = rng.choice(["%x[c, t] + f32(index(t))", "%x[c=min(max(c - 2, 0), 3), t]"])
    return f"""
graph "choice"
dims c = {c}, p = {k}, t = {t}, u = {4 * rng.randint(1, 3)}
%x : f32{{c,t}} = input "x" [t, c]
%y : f32{{c,p,t,u}} = {rng.choice(["select(index(p) == 0, %x[c, t], " + place + ")", place])}
output "y" [u, p, t, c] = %y
"""


def put(rng: Random) -> str:
    """A scatter of rows or of elements."""
    m, n, k = (rng.choice([3, 5, 8, 17, 33]) for _ in range(3))
    dtype, how = rng.choice(["f32", "i32", "u8"]), rng.choice(["set", "sum", "max"])
    at, place = rng.choice([("k", "%at[k]"), ("k,n", "%at[k, n]")])
    return f"""
graph "put"
dims m = {m}, n = {n}, k = {k}
%x : {dtype}{{m,n}} = input "x" [{rng.choice(["m, n", "n, m"])}]
%at : i64{{{at}}} = input "at" [{at}]
%u : {dtype}{{k,n}} = input "u" [{rng.choice(["k, n", "n, k"])}]
%y : {dtype}{{m,n}} = scatter{{k,n}} %x[m={place}, n=n] {how}= %u[k, n]
output "y" [m, n] = %y
"""


def onward(rng: Random) -> str:
    """A running sum or extreme, from either end, with or without its own element."""
    b, m, c = rng.choice([1, 3]), rng.choice([5, 17, 40]), rng.choice([1, 4, 9, 33, 70])
    dtype = rng.choice(["f32", "i64", "i32"])
    reducer, least = rng.choice([("sum", 0), ("max", -7)])
    if reducer == "max":
        least = {"f32": "-inf", "i64": -(1 << 63), "i32": -(1 << 31)}[dtype]
    elif dtype == "f32":
        least = 0.0
    place = rng.choice(["m - k", "m - k - 1", "m + k", "m + k + 1"])
    return f"""
graph "onward"
dims b = {b}, c = {c}, m = {m}, k = {m}, l = {m}
%x : {dtype}{{b,c,l}} = input "x" [{", ".join(rng.sample("bcl", 3))}]
%s : {dtype}{{b,c,m}} = {reducer}{{k}} %x[b, c, l={place} else {least}]
%y : {dtype}{{b,c,m}} = %s[b, c, m] * %x[b, c, l=m]
output "y" [{", ".join(rng.sample("bcm", 3))}] = %y
"""


def computed_products(rng: Random) -> str:
    """Products of two computed factors in bf16, of which one lies in blocks."""
    b, m, n, k = (
        rng.choice([1, 3]),
        rng.choice([4, 8, 17]),
        rng.choice([16, 32]),
        2 * rng.randint(8, 16),
    )
    axes = rng.choice(["b, m, n", "b, n, m", "m, n, b"])
    return f"""
graph "computed products"
dims b = {b}, m = {m}, n = {n}, k = {k}
%x : bf16{{b,k,m}} = input "x" [{rng.choice(["b, m, k", "m, b, k"])}]
%w : bf16{{b,k,n}} = input "w" [b, n, k]
%s : f32{{b,m,n}} = sum{{k}} f32(%x[b, k, m]) * f32(%w[b, k, n])
%r : f32{{b,m,n}} = max(%s[b, m, n], 0.0)
output "r" [{axes}] = %r
"""


def in_blocks(rng: Random) -> str:
    """A copy into blocks of pairs."""
    b, n, k = rng.choice([1, 3]), rng.choice([16, 32, 64]), 2 * rng.randint(2, 12)
    source = rng.sample("bnk", 3)
    return f"""
graph "in blocks"
dims b = {b}, n = {n}, k = {k}
%x : f32{{b,k,n}} = input "x" [{", ".join(source)}]
%r : bf16{{b,k,n}} = bf16(%x[b, k, n] + 1.0)
output "r" [b, n, k] = %r
"""


TEXTS: dict[str, tuple[Callable[[Random], str], Sequence[str]]] = {
    "windows": (convolution, ("w",)),
    "matrix": (products, ("w",)),
    "computed": (computed_products, ()),
    "blocks": (in_blocks, ()),
    "moved": (moved, ()),
    "chosen": (chosen, ()),
    "running": (onward, ()),
    "scatter": (put, ()),
}
"""What makes kernels of a kind, and which buffers of theirs may be laid out."""
BLOCKS = {"computed": {"w": {"n": 16, "k": 2}}, "blocks": {"r": {"n": 16, "k": 2}}}
"""Buffers of a kind that lie in blocks."""


def written(kind: str, rng: Random) -> Subject:
    """A random kernel of a kind."""
    make, free = TEXTS[kind]
    text = make(rng)
    own = frozenset(v for v in free if f"%{v} :" in text)
    return of_text(text, own, rng, BLOCKS.get(kind, {}))


def grouped(count: int, number: int) -> list[Subject]:
    """So many random groups; the same for a number."""
    found: list[Subject] = []
    rng = Random(number)

    @seeded(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(lengths=LONG, points=20_000))
    def collect(case: Case) -> None:
        reads = [n for n in case.group.external_reads() if not case.layouts[n].halo]
        found.append(of_case(case, frozenset(v for v in reads if rng.random() < 0.5)))

    collect()
    return found
