"""What every step has: `apply`, and helpers to find and rewrite loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from rutc.tensor_ir.affine import Index, Range
from rutc.tensor_ir.kernel import Branch, Kernel, Loop, Stmt, rewrite, walk_stmts


class NotApplicable(Exception):  # noqa: N818
    """A step's precondition does not hold; the message says which."""


class Step(Protocol):
    """A rewrite of kernels that keeps their meaning."""

    def apply(self, kernel: Kernel) -> Kernel:
        """The rewritten kernel. Raises NotApplicable with the reason."""
        ...


Schedule = tuple[Step, ...]


def apply_schedule(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel after all steps. Raises NotApplicable naming the step that does not apply."""
    for step in schedule:
        try:
            kernel = step.apply(kernel)
        except NotApplicable as e:
            raise NotApplicable(f"{step}: {e}") from None
    return kernel


def find_loop(kernel: Kernel, var: str) -> Loop:
    """The (first) loop over `var`."""
    for s in walk_stmts(kernel.body):
        if isinstance(s, Loop) and s.var == var:
            return s
    raise NotApplicable(f"there is no loop over {var}")


def constant_extent(loop: Loop) -> int:
    """The number of iterations of a loop with constant bounds."""
    extent = loop.hi - loop.lo
    if not extent.is_const:
        raise NotApplicable(f"the bounds of {loop.var} are not constant")
    return extent.value


def replace_loop(
    body: tuple[Stmt, ...], var: str, f: Callable[[Loop], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`body` with every loop over `var` replaced by the statements that `f` gives for it."""
    result: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop) and s.var == var:
            result += f(s)
        elif isinstance(s, Loop):
            result.append(replace(s, body=replace_loop(s.body, var, f)))
        elif isinstance(s, Branch):
            then = replace_loop(s.then, var, f)
            result.append(replace(s, then=then, orelse=replace_loop(s.orelse, var, f)))
        else:
            result.append(s)
    return tuple(result)


def with_index(body: tuple[Stmt, ...], env: Mapping[str, Index]) -> tuple[Stmt, ...]:
    """`body` with loop variables replaced by index expressions."""
    return rewrite(body, index=lambda i: i.subs(env))


def simplified(body: tuple[Stmt, ...], ranges: Mapping[str, Range]) -> tuple[Stmt, ...]:
    """`body` with every index simplified under these ranges and those of its own loops."""
    result: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop):
            lo, hi = s.lo.simplify(ranges), s.hi.simplify(ranges)
            inner = dict(ranges)
            inner.pop(s.var, None)
            low, high = lo.bounds(ranges), hi.bounds(ranges)
            if low is not None and high is not None:
                inner[s.var] = (low[0], max(high[1] - 1, low[0]))
            result.append(replace(s, lo=lo, hi=hi, body=simplified(s.body, inner)))
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
