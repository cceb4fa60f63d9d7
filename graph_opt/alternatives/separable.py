"""Windows of several dims are reduced along one dim after the other, where that is less work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rutc.base.record import record
from rutc.graph_opt.alternatives import Offer
from rutc.graph_opt.alternatives.ways import ChoosesWays, Way
from rutc.graph_opt.editor import Editor, key_of
from rutc.graph_opt.exprs import index_coords, is_gathered
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason
from rutc.tensor_ir import Index, Nest, Node, Read, Value
from rutc.tensor_ir.facts.windows import partners


@record
class Separated:
    """A nest that reduces what it reads over windows, and the one of them that comes first."""

    nest: Nest
    read: Read
    windows: Mapping[str, str]
    """Bound dim -> the dim of what is read that it moves along."""
    tap: str


@matches("reduction")
@record
class SeparateWindows(ChoosesWays[Separated]):
    """The largest, or the sum, of a window is that of its rows' largest, or sums.

    %o{c,x,y} = max{i,j} %v[c, h=y+i-4, w=x+j-4 else -inf]
      ->  %o.part{c,h.part,x} = max{j} %v[c, h=h.part, w=x+j-4 else -inf]
          %o{c,x,y} = max{i} %o.part[c, h.part=y+i-4, x else -inf]

    Windows beside each other share what their rows have in common: of 9 x 9 elements, 18 are left.
    Costs are of elements that are reduced. `separate j` reduces rows along j first.
    """

    share: float = 0.7

    def ways(self, n: Node, editor: Editor) -> Sequence[Way[Separated]] | Reason:
        """Every window of a nest that may come first."""
        if not isinstance(n, Nest) or n.reducer is None:
            return Reason("not a reduction")
        r = n.body[0]
        if len(n.body) > 1 or not isinstance(r, Read) or is_gathered(r):
            return Reason("it reduces more than what it reads at indices")
        fold = n.reducer
        if len(fold.identity) > 1 or not fold.is_fold:
            return Reason(f"{fold.name} of some of its results is none of all elements")
        if r.fill is not None and r.fill.value != fold.identity[0].value:
            return Reason(f"what is outside of %{r.value} counts")
        found = _windows(n, r)
        if len(found) < 2 or editor.size(n.bound) is None:
            return Reason("its windows have not several dims of known size")
        direct = _points(n, editor) * _taps(n.bound, editor)
        return [
            Way(
                Offer(n.out.name, f"separate {b}", _work(n, r, found, b, editor), direct),
                Separated(n, r, found, b),
            )
            for b in sorted(found)
        ]

    def made(self, form: Separated, editor: Editor) -> tuple[Node, ...]:
        """The rows' nest and the one that reads it."""
        return _separated(form.nest, form.read, form.windows, form.tap, editor)

    def chosen(self, editor: Editor) -> Iterator[tuple[str, str]]:
        """Windows of more than two dims are separated again: the editor has the nests after it."""
        left = list(editor.nodes)
        while left:
            n = editor.nodes[left.pop(0)]
            way = self.choice(n, editor)
            if not isinstance(way, Reason):
                yield way.offer.value, way.offer.algorithm
                nodes = self.made(way.form, editor)
                editor.replace(n, nodes)
                left += map(key_of, nodes)


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


def _work(n: Nest, r: Read, found: Mapping[str, str], tap: str, editor: Editor) -> float:
    """Elements that are reduced, or stored and read again, if rows along `tap` come first."""
    rows = editor.typical(_rows_dims(n, r, found, tap))
    others = tuple(b for b in n.bound if b != tap)
    return rows * (_taps((tap,), editor) + 2) + _points(n, editor) * _taps(others, editor)


def _rows_dims(n: Nest, r: Read, found: Mapping[str, str], tap: str) -> list[str]:
    """The dims of the rows' results: those of the other windows are still the source's."""
    whole = {d for b, d in found.items() if b != tap}
    kept = {v for d, c in index_coords(r) if d not in whole for v in c.names()}
    return [*sorted(kept.intersection(n.out.dims)), *sorted(whole)]


def _separated(
    n: Nest, r: Read, found: Mapping[str, str], tap: str, editor: Editor
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
