"""What every step has: `apply`, a text form, and helpers to find, check and rewrite loops."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, lru_cache
from itertools import groupby
from operator import is_

from rutc.tensor_ir.expr import coord_names, plain_names, reads
from rutc.tensor_ir.indices.affine import ZERO, Index, Range, Size, minimum, plain, quoted
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Buffer,
    Init,
    Kernel,
    Kind,
    Loop,
    Merge,
    Put,
    Space,
    Stmt,
    Update,
)
from rutc.tensor_ir.statements import (
    accesses,
    exprs,
    is_for_ranges,
    own_indices,
    rewrite,
    walk_loops,
    walk_stmts,
)

MOST_LANES = 1024
"""A vector loop whose extent is not constant has at most so many iterations."""
RECENT = 16
"""Schedules whose kernels are kept: that which is chosen is applied once more."""


class NotApplicable(Exception):
    """A step's precondition does not hold; the message says which."""


class Step(ABC):
    """A rewrite of kernels that keeps their meaning; its text form is that of `steps.text`."""

    @abstractmethod
    def apply(self, kernel: Kernel) -> Kernel:
        """The rewritten kernel. Raises NotApplicable with the reason."""

    @property
    def alike(self) -> Hashable:
        """Equal for steps of a kind that are done at once where they follow each other."""
        return None

    def apply_all(self, kernel: Kernel, run: Sequence[Step]) -> Kernel:
        """The kernel after `run`, this step and those after it that are alike.

        Raises NotApplicable naming the step that does not apply.
        """
        for step in run:
            try:
                kernel = step.apply(kernel)
            except NotApplicable as e:
                raise NotApplicable(f"{step}: {e}") from None
        return kernel

    def __str__(self) -> str:
        values = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return f"{step_name(type(self))}({', '.join(map(field_text, values))})"


Schedule = tuple[Step, ...]
Field = str | int | Kind | tuple["Field", ...]
"""What a step's fields are."""


@cache
def step_name(kind: type[Step]) -> str:
    """The name of a kind of steps in the text form: that of its class, in small letters."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def field_text(x: Field) -> str:
    """A field of a step as text."""
    match x:
        case Kind():
            return x.value
        case str():
            return quoted(x)
        case int():
            return str(x)
        case tuple():
            return f"[{', '.join(map(field_text, x))}]"


@lru_cache(RECENT)
def apply_schedule(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel after all steps. Raises NotApplicable naming the step that does not apply."""
    for _, alike in groupby(schedule, key=lambda step: (type(step), step.alike)):
        run = tuple(alike)
        kernel = run[0].apply_all(kernel, run)
    return kernel


def find_loops(kernel: Kernel, var: str) -> tuple[Loop, ...]:
    """All loops over `var`. Raises NotApplicable when there is none."""
    found = tuple(s for s in walk_loops(kernel.body) if s.var == var)
    if not found:
        raise NotApplicable(f"there is no loop over {var}")
    return found


def directly_nested(loop: Loop, variables: tuple[str, ...]) -> list[Loop]:
    """`loop`, over the first variable, and those over the others, each all that the last one does.

    Raises NotApplicable where a loop does more than the next.
    """
    chain = [loop]
    for v in variables[1:]:
        body = chain[-1].body
        if len(body) != 1 or not isinstance(body[0], Loop) or body[0].var != v:
            raise NotApplicable(f"{chain[-1].var} does not directly hold {v}")
        chain.append(body[0])
    return chain


def check_fresh(kernel: Kernel, *names: str) -> None:
    """Raises NotApplicable when one of the names is a loop's or a symbol's already."""
    taken = {s.var for s in walk_loops(kernel.body)}
    taken |= {name for name, _ in kernel.symbols}
    for name in names:
        if name in taken:
            raise NotApplicable(f"there is a loop over {name} already")


def check_positive(what: str, number: int) -> None:
    """Raises NotApplicable for a number below 1."""
    if number < 1:
        raise NotApplicable(f"the {what} {number} is not positive")


def constant_extent(loop: Loop) -> int:
    """The number of iterations of a loop with constant bounds."""
    extent = loop.hi - loop.lo
    if not extent.is_const:
        raise NotApplicable(f"the bounds of {loop.var} are not constant")
    return extent.value


def symbolic_extent(kernel: Kernel, loop: Loop) -> Size:
    """The number of iterations: an int, or an expression of the kernel's symbols.

    Raises NotApplicable for bounds that depend on other loops.
    """
    extent = loop.hi - loop.lo
    if not extent.names() <= {n for n, _ in kernel.symbols}:
        raise NotApplicable(f"the bounds of {loop.var} depend on other loops")
    return plain(extent)


def in_blocks(kernel: Kernel, loop: Loop, factor: int, outer: str, inner: str) -> tuple[Loop, Loop]:
    """A loop over blocks, which does nothing yet, and a loop over the iterations of one of them.

    for v in [0, n) { S }  ->  for outer in [0, ceil(n/f)) { },
                               for inner in [0, min(f, n - f*outer)) { S }

    Raises NotApplicable for bounds that depend on other loops.
    """
    n = Index.of(symbolic_extent(kernel, loop))
    position = Index.of(outer) * factor + Index.of(inner) + loop.lo
    count = (n + (factor - 1)) // factor
    ranges = dict(kernel.symbols)
    most = count.bounds(ranges)
    if most is not None:
        ranges[outer] = (0, most[1] - 1)
    rest = n - Index.of(outer) * factor
    whole = n % factor == ZERO
    width = Index.of(factor) if whole else minimum(factor, rest, ranges)
    body = with_index(loop.body, {loop.var: position})
    return Loop(outer, ZERO, count, loop.kind, ()), Loop(inner, ZERO, width, loop.kind, body)


def constant_start(loop: Loop) -> int:
    """The first iteration of a loop with constant bounds."""
    constant_extent(loop)
    if not loop.lo.is_const:
        raise NotApplicable(f"the bounds of {loop.var} are not constant")
    return loop.lo.value


def check_independent(kernel: Kernel, loop: Loop) -> None:
    """Raises NotApplicable when iterations of `loop` use what others computed.

    They do where a local is updated that is neither initialised in the iteration nor indexed by
    the variable, and where several iterations write one place in memory.
    """
    iterations = (loop.hi - loop.lo).bounds(outer_ranges(kernel))
    if iterations is not None and iterations[1] <= 1:
        return
    memory = {b.name for b in kernel.args}
    started: set[str] = set()
    for s in walk_stmts(loop.body):
        if isinstance(s, Init):
            started |= {a.buffer for a in s.states}
        elif isinstance(s, Assign) and s.target.buffer not in memory:
            started.add(s.target.buffer)
    for s in walk_stmts(loop.body):
        if isinstance(s, Update | Merge):
            shared = [a for a in s.states if a.buffer not in started and not moves(a, loop.var)]
            if shared:
                raise NotApplicable(f"{loop.var} carries the reduction in %{shared[0].buffer}")
        elif isinstance(s, Assign) and s.target.buffer in memory and not moves(s.target, loop.var):
            raise NotApplicable(f"every iteration of {loop.var} writes %{s.target.buffer}")
        elif isinstance(s, Put) and not _separates(s.target, loop, outer_ranges(kernel)):
            raise NotApplicable(f"iterations of {loop.var} may put to one place")


def check_no_order(body: tuple[Stmt, ...]) -> None:
    """Raises NotApplicable where statements use states that go on from one iteration to the next.

    Those of a reduction over them alone may take in their elements in any order.
    """
    started = {a.buffer for s in walk_stmts(body) if isinstance(s, Init) for a in s.states}
    updates = [s for s in walk_stmts(body) if isinstance(s, Update)]
    carried = {a.buffer for s in updates for a in s.states} - started
    if not carried:
        return
    for s in walk_stmts(body):
        if isinstance(s, Assign):
            used = carried.intersection(r.value for e in exprs(s) for r in reads(e))
            if used:
                raise NotApplicable(f"iterations use %{min(used)}, which goes on to the next one")


def _separates(a: Access, loop: Loop, ranges: Mapping[str, Range]) -> bool:
    """Whether some coordinate tells the iterations of `loop` apart, loops inside included."""
    inside = {s.var for s in walk_loops(loop.body)}
    for _, c in a.coords:
        if not isinstance(c, Index):
            continue
        step = c.coefficient(loop.var)
        if step is None or step == 0:
            continue
        rest = c - Index.of(loop.var) * step
        own = Index(tuple(t for t in rest.terms if Index((t,)).names() & inside))
        bounds = own.bounds({v: ranges[v] for v in inside if v in ranges})
        if bounds is not None and bounds[1] - bounds[0] < abs(step):
            return True
    return False


def check_vector(kernel: Kernel, loop: Loop) -> None:
    """Raises NotApplicable unless `loop` can be carried out by lanes."""
    for s in walk_loops(loop.body):
        if s.kind is Kind.VECTOR:
            raise NotApplicable(f"{loop.var} holds the vector loop {s.var}")
        if loop.var in s.lo.names() | s.hi.names():
            raise NotApplicable(f"the bounds of {s.var} depend on {loop.var}")
    for outer in walk_loops(kernel.body):
        if outer.kind is Kind.VECTOR and loop in walk_loops(outer.body):
            raise NotApplicable(f"{loop.var} stands in the vector loop {outer.var}")
    bounds = loop.hi.bounds(outer_ranges(kernel))
    if not loop.lo.is_const or bounds is None:
        raise NotApplicable(f"the extent of {loop.var} has no bound")
    if not loop.hi.is_const and bounds[1] > MOST_LANES:
        raise NotApplicable(f"the extent of {loop.var} may be {bounds[1]}: split it first")
    for x in walk_stmts(loop.body):
        if isinstance(x, Branch) and loop.var in x.left.names() | x.right.names():
            raise NotApplicable(f"a branch depends on {loop.var}")
        if isinstance(x, Merge):
            raise NotApplicable(f"{loop.var} holds the merge of lanes {x.var}")


def check_no_registers(kernel: Kernel, var: str) -> None:
    """Raises NotApplicable where registers are indexed by `var`: they are no arrays in memory."""
    registers = {b.name for b in kernel.locals if b.space is Space.REGISTER and b.layout.axes}
    if not registers:
        return
    for s in walk_stmts(kernel.body):
        if not any(var in i.names() for i in own_indices(s)):
            continue
        places = [(a.buffer, a.coords) for a in accesses(s)]
        places += [(r.value, r.coords) for e in exprs(s) for r in reads(e)]
        for name, coords in places:
            if name in registers and var in plain_names(coords):
                raise NotApplicable(f"the registers %{name} are indexed by {var}")


def outer_ranges(kernel: Kernel) -> dict[str, Range]:
    """The range of every loop variable whose bounds are bounded, widest where it has several."""
    # Kernels never change, and every step asks several times.
    known: dict[str, Range] | None = kernel.__dict__.get("_ranges")
    if known is None:
        known = ranges_of(walk_loops(kernel.body), dict(kernel.symbols))
        kernel.__dict__["_ranges"] = known
    return dict(known)


def ranges_of(loops: Iterable[Loop], symbols: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of symbols and of loops, the outermost first, whose bounds are bounded.

    A variable of several loops has the widest of their ranges.
    """
    ranges = dict(symbols)
    for s in loops:
        low, high = s.lo.bounds(ranges), s.hi.bounds(ranges)
        if low is not None and high is not None:
            found = (low[0], max(high[1] - 1, low[0]))
            before = ranges.get(s.var, found)
            ranges[s.var] = (min(found[0], before[0]), max(found[1], before[1]))
    return ranges


def plain_coords(a: Access) -> tuple[tuple[str, Index], ...]:
    """The coordinates of an access; raises NotApplicable where data tell one."""
    found = tuple((d, c) for d, c in a.coords if isinstance(c, Index))
    if len(found) < len(a.coords):
        raise NotApplicable("the store's place depends on data")
    return found


def moves(a: Access, var: str) -> bool:
    """Whether the place differs between iterations of `var` (or may)."""
    return any(var in coord_names(c) for _, c in a.coords)


def replace_loop(
    body: tuple[Stmt, ...], var: str, f: Callable[[Loop], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`body` with every loop over `var` replaced by the statements that `f` gives for it."""
    result: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop) and s.var == var:
            result += f(s)
        elif isinstance(s, Loop):
            inner = replace_loop(s.body, var, f)
            kept = len(inner) == len(s.body) and all(map(is_, inner, s.body))
            result.append(s if kept else Loop(s.var, s.lo, s.hi, s.kind, inner))
        elif isinstance(s, Branch):
            then = replace_loop(s.then, var, f)
            result.append(replace(s, then=then, orelse=replace_loop(s.orelse, var, f)))
        else:
            result.append(s)
    return tuple(result)


def with_replaced(
    kernel: Kernel,
    var: str,
    f: Callable[[Loop], tuple[Stmt, ...]],
    added: Iterable[Buffer] = (),
) -> Kernel:
    """The kernel with what `f` gives for every loop over `var`, simplified, and more locals.

    `f` may go on adding to those.
    """
    body = simplified(replace_loop(kernel.body, var, f), dict(kernel.symbols))
    return replace(kernel, body=body, locals=(*kernel.locals, *added))


def with_index(body: tuple[Stmt, ...], env: Mapping[str, Index]) -> tuple[Stmt, ...]:
    """`body` with loop variables replaced by index expressions."""
    return rewrite(body, index=lambda i: i.subs(env))


def simplified(body: tuple[Stmt, ...], ranges: Mapping[str, Range]) -> tuple[Stmt, ...]:
    """`body` with every index simplified under these ranges and those of its own loops."""
    result: list[Stmt] = []
    for s in body:
        if not is_for_ranges(s):
            result.append(s)
        elif isinstance(s, Loop):
            lo, hi = s.lo.simplify(ranges), s.hi.simplify(ranges)
            inner = dict(ranges)
            inner.pop(s.var, None)
            low, high = lo.bounds(ranges), hi.bounds(ranges)
            if low is not None and high is not None:
                inner[s.var] = (low[0], max(high[1] - 1, low[0]))
            result.append(Loop(s.var, lo, hi, s.kind, simplified(s.body, inner)))
        elif isinstance(s, Branch):
            left, right = s.left.simplify(ranges), s.right.simplify(ranges)
            difference = (left - right).bounds(ranges)
            if difference is not None and difference[1] < 0:
                result += simplified(s.then, ranges)
            elif difference is not None and difference[0] >= 0:
                result += simplified(s.orelse, ranges)
            else:
                then = simplified(s.then, ranges)
                result.append(Branch(left, right, then, simplified(s.orelse, ranges)))
        else:
            result += rewrite((s,), index=lambda i: i.simplify(ranges))
    return tuple(result)
