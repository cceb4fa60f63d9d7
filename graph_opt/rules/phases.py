"""Sums that keep every K-th tap are sums over those taps [Shi et al. 2016, §3]."""

from __future__ import annotations

from dataclasses import replace

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.scale import factors, product_of
from rutc.tensor_ir import Apply, DType, Expr, Index, IndexValue, Lit, Nest, Node
from rutc.tensor_ir.affine import Mod, mod
from rutc.tensor_ir.expr import map_index, substitute


def solve_phase(n: Node, editor: Editor) -> Result:
    """A condition that only one phase of a bound dim meets picks that phase.

    %y{j} = sum{k} select(index((j - k) % 2) == 0, %x[i=(j - k) // 2 else 0], 0) * %w[k]
    ->
    %y{j} = sum{k_o} %x[i=j // 2 - k_o else 0] * %w[k=2*k_o + j % 2]

    for an even extent of k. A transposed convolution is one such sum: its stride is the number of
    phases. The terms that go are 0 unless a weight is infinite or NaN.
    """
    if not isinstance(n, Nest) or n.reducer is None or n.reducer.name != "sum":
        return Reason("not a sum")
    parts = factors(n.body[0])
    why = Reason("no factor is chosen by a remainder")
    for i, part in enumerate(parts):
        found = _chosen_by_remainder(part)
        if found is None:
            continue
        condition, kept = found
        for k in n.bound:
            extent, sign = editor.extents[k], condition.num.coefficient(k)
            phases = condition.den.const
            if sign is None or sign % phases not in (1, phases - 1):
                continue
            if not extent.is_const or extent.const % phases:
                why = Reason(f"the extent {extent} of {k} is not a multiple of {phases}")
                continue
            rest = condition.num - Index.of(k) * sign
            phase = mod(rest if sign % phases == phases - 1 else -rest, condition.den, {})
            chosen = product_of([*parts[:i], kept, *parts[i + 1 :]])
            return (_with_phase(n, k, phase, phases, chosen, editor),)
    return why


def _chosen_by_remainder(e: Expr) -> tuple[Mod, Expr] | None:
    """(a % K, x) of `select(index(a % K) == 0, x, 0)`."""
    match e:
        case Apply(
            op="select",
            args=(
                Apply(
                    op="eq", args=(IndexValue(Index(terms=(((Mod() as m,), 1),), const=0)), zero)
                ),
                kept,
                Lit() as other,
            ),
        ):
            plain = zero == Lit(0, DType.I64) and other.value == 0 and m.den.is_const
            return (m, kept) if plain else None
        case _:
            return None


def _with_phase(n: Nest, k: str, phase: Index, phases: int, body: Expr, editor: Editor) -> Nest:
    """`n` summing `body` over k = phases * k_o + phase."""
    count = editor.extents[k].const // phases
    left = tuple(d for d in n.bound if d != k)
    at = phase
    if count > 1:
        outer = editor.fresh_dim(f"{k}_o", Index.of(count))
        left = tuple(outer if d == k else d for d in n.bound)
        at = phase + Index.of(outer) * phases
    body = map_index(substitute(body, {k: at}), editor.simplify)
    return replace(n, bound=left, body=(body,), reducer=n.reducer if left else None)
