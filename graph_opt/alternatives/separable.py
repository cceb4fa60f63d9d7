"""Windows of several dims are reduced along one dim after the other, where that is less work."""

from __future__ import annotations

from rutc.base.record import record
from rutc.graph_opt.alternatives import Assigned, Offer
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import Index, Local, Nest, Node, Read, Value
from rutc.tensor_ir.machine import COMMON, Machine
from rutc.tensor_ir.windows import partners


@matches("reduction")
@record
class SeparateWindows:
    """The largest, or the sum, of a window is that of its rows' largest, or sums.

    %o{c,x,y} = max{i,j} %v[c, h=y+i-4, w=x+j-4 else -inf]
      ->  %o.part{c,h.part,x} = max{j} %v[c, h=h.part, w=x+j-4 else -inf]
          %o{c,x,y} = max{i} %o.part[c, h.part=y+i-4, x else -inf]

    Windows beside each other share what their rows have in common: of 9 x 9 elements, 18 are left.
    Where that takes less than `share` of the work.
    """

    share: float = 0.7
    machine: Machine = COMMON
    assigned: Assigned | None = None
    """What to separate how, instead of what is weighed so."""

    def __str__(self) -> str:
        return "SeparateWindows"

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The rows' nest and the one that reads it, or why not."""
        found = self.choice(n, editor)
        if isinstance(found, Reason):
            return found
        assert isinstance(n, Nest)
        r = n.body[0]
        assert isinstance(r, Read)
        return _separated(n, r, _windows(n, r), found, editor)

    def offers(self, n: Node, editor: Editor) -> tuple[Offer, ...]:
        """Every window of a nest that may come first, and the steps that are left."""
        found = self._taps(n, editor)
        if isinstance(found, Reason) or not isinstance(n, Nest):
            return ()
        direct = self._direct(n, editor)
        return tuple(Offer(n.out.name, said(tap), work, direct) for work, tap in found)

    def choice(self, n: Node, editor: Editor) -> str | Reason:
        """The window along which rows are reduced first, or why none."""
        found = self._taps(n, editor)
        if isinstance(found, Reason):
            return found
        assert isinstance(n, Nest)
        work, tap = min(found)
        if self.assigned is not None:
            own = (t for _, t in found if self.assigned.has(n.out.name, said(t)))
            return next(own, Reason("it is assigned another algorithm"))
        direct = self._direct(n, editor)
        if work > self.share * direct:
            return Reason(f"it saves too little: {work:.0f} steps instead of {direct:.0f}")
        return tap

    def _taps(self, n: Node, editor: Editor) -> list[tuple[float, str]] | Reason:
        """(steps, window) of each window that may come first."""
        if not isinstance(n, Nest) or n.reducer is None:
            return Reason("not a reduction")
        r = n.body[0]
        if len(n.body) > 1 or not isinstance(r, Read) or len(index_coords(r)) < len(r.coords):
            return Reason("it reduces more than what it reads at indices")
        fold = n.reducer
        if fold.lift != (Local("x0", r.dtype),) or fold.finish != (Local("s0", r.dtype),):
            return Reason(f"{fold.name} of some of its results is none of all elements")
        if r.fill is not None and r.fill != fold.identity[0]:
            return Reason(f"what is outside of %{r.value} counts")
        found = _windows(n, r)
        if len(found) < 2 or editor.size(n.bound) is None:
            return Reason("its windows have not several dims of known size")
        stored = self.machine.coefficients.filtering.stored
        return [(_work(n, r, found, b, editor, stored), b) for b in sorted(found)]

    @staticmethod
    def _direct(n: Nest, editor: Editor) -> float:
        return _points(n, editor) * _taps(n.bound, editor)


def said(tap: str) -> str:
    """The name of an algorithm: `separate kx` reduces rows along kx first."""
    return f"separate {tap}"


def _windows(n: Nest, r: Read) -> dict[str, str]:
    """Bound dim -> the dim of the source that it moves along, together with a free dim alone."""
    free = frozenset(n.out.dims)
    moved = partners((r,), free, frozenset(n.bound)) or {}
    found: dict[str, str] = {}
    for b, f in moved.items():
        own = [d for d, c in index_coords(r) if b in c.names()]
        around = [d for d, c in index_coords(r) if f in c.names()]
        if own != around or len(own) != 1:
            return {}
        found[b] = own[0]
    return found if len(set(found.values())) == len(found) else {}


def _points(n: Nest, editor: Editor) -> float:
    return float(editor.typical(n.out.dims))


def _taps(dims: tuple[str, ...], editor: Editor) -> int:
    return editor.size(dims) or 1


def _work(
    n: Nest, r: Read, found: dict[str, str], tap: str, editor: Editor, stored: float
) -> float:
    """Elements that are reduced, and what storing costs, if rows along `tap` come first."""
    rows = editor.typical(_rows_dims(n, r, found, tap))
    others = tuple(b for b in n.bound if b != tap)
    return rows * (_taps((tap,), editor) + stored) + _points(n, editor) * _taps(others, editor)


def _rows_dims(n: Nest, r: Read, found: dict[str, str], tap: str) -> list[str]:
    """The dims of the rows' results: those of the other windows are still the source's."""
    whole = {d for b, d in found.items() if b != tap}
    kept = {v for d, c in index_coords(r) if d not in whole for v in c.names()}
    return [*sorted(kept.intersection(n.out.dims)), *sorted(whole)]


def _separated(
    n: Nest, r: Read, found: dict[str, str], tap: str, editor: Editor
) -> tuple[Node, ...]:
    new = {
        d: editor.fresh_dim(f"{d}.part", editor.extents[d])
        for d in sorted(d for b, d in found.items() if b != tap)
    }
    dims = [new.get(d, d) for d in _rows_dims(n, r, found, tap)]
    part = Value(editor.fresh_value(f"{n.out.name}.part"), r.dtype, tuple(sorted(dims)))
    along = tuple((d, Index.of(new[d]) if d in new else c) for d, c in r.coords)
    rows = Nest((part,), (tap,), n.reducer, (Read(r.value, along, r.dtype, r.fill),), n.origin)
    places = {new[d]: c for d, c in index_coords(r) if d in new}
    places |= {d: Index.of(d) for d in part.dims if d not in places}
    read = Read(part.name, tuple(sorted(places.items())), r.dtype, r.fill)
    others = tuple(b for b in n.bound if b != tap)
    return rows, Nest(n.outs, others, n.reducer, (read,), n.origin)
