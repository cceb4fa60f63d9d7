"""Which sizes a model takes, told where it takes none of those that it was to have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rutc.errors import UserError
from rutc.importer.dims import clean_dim
from rutc.importer.free_sizes.relations import Dims
from rutc.tensor_ir import Graph
from rutc.tensor_ir.indices.ranges import limits_text, multiple

HINT = "; fixing the symbolic sizes ("


def sizes_hint(sizes: Sequence[str]) -> str:
    """What may help where sizes that are left open are perhaps at fault; "" where none are."""
    if not sizes:
        return ""
    return (
        f"{HINT}{', '.join(sizes)}) may help, or narrower ranges: --dim NAME=N, NAME=LOW..HIGH, "
        "or multiples NAME=LOW..HIGH/STEP"
    )


def with_possible_sizes(
    error: UserError, dims: Dims, imported: Callable[[Dims], Graph]
) -> UserError | None:
    """The error of an import, after what is wrong with the fixed sizes among `dims`; None: nothing.

    The model is `imported` again with these left open: what it takes then tells which of them is at
    fault, `seq=1024` where there are 512 positions, and no hint at other sizes is needed.
    """
    fixed = {name: size for name, size in dims.items() if isinstance(size, int)}
    if not fixed:
        return None
    try:
        graph = imported({name: told for name, told in dims.items() if name not in fixed})
    except UserError:
        return None
    open_sizes: Mapping[str, str] = {multiple(symbol)[0]: symbol for symbol, _ in graph.symbols}
    limits = dict(graph.symbols)
    wrong = []
    for name, size in fixed.items():
        symbol = open_sizes.get(clean_dim(name))
        if symbol is None:
            continue
        low, high = limits[symbol]
        step = multiple(symbol)[1]
        if size % step or not low <= size // step <= high:
            taken = limits_text(limits[symbol], step)
            wrong.append(f"--dim {name}={size} does not fit: the model takes {taken}")
    why = str(error).partition(HINT)[0]
    return UserError(f"{'; '.join(wrong)}: {why}") if wrong else None
