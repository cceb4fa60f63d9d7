"""Kernels that store far apart: lines of results share sets of the first cache, and evict others.

How much that costs, few kernels of models tell: most of them store side by side. Each is a graph
of one nest; sizes are such that rows of results lie a power of two apart, or nearly so.
"""

TURNED = """
graph "turned"
dims c = {c}, p = {p}
%v : {dtype}{{c,p}} = input "v" [c, p]
%o : {dtype}{{c,p}} = %v[c, p]
output "o" [p, c] = %o
"""
POOLED = """
graph "pooled"
dims p = {size}, q = {size}, y = {rows}, x = {rows}, c = {c}, i = {taps}, j = {taps}
%v : f32{{c,p,q}} = input "v" [p, q, c]
%o : f32{{c,y,x}} = max{{i,j}} %v[c, p=2*y+i, q=2*x+j]
output "o" [y, x, c] = %o
"""
FILTERED = """
graph "filtered"
dims c = {c}, y = {y}, x = {x}, q = {q}, k = 3
%v : f32{{c,k,q,y}} = input "v" [k, y, q, c]
%o : f32{{c,x,y}} = select(index(x % 2) == 0, {even}, {odd})
output "o" [c, y, x] = %o
""".replace("{even}", "%v[c, k=0, q=x // 2, y] + %v[c, k=1, q=x // 2, y]").replace(
    "{odd}", "%v[c, k=1, q=x // 2, y] - %v[c, k=2, q=x // 2, y]"
)
"""What a filter's tile gives: two sums of channels side by side, to channels rows apart."""


def _graphs() -> dict[str, str]:
    found: dict[str, str] = {}
    for c in (64, 96, 256, 640, 1024):
        for p in (49, 144, 784):
            for dtype in ("f32", "u8"):
                text = TURNED.format(c=c, p=p, dtype=dtype)
                found[f"turned {c}x{p} {dtype}"] = text
    for size in (32, 48, 64, 128):
        for c in (32, 96, 128):
            text = POOLED.format(size=size, rows=size // 2, c=c, taps=2)
            found[f"pooled {size}x{size}x{c}"] = text
    for c in (16, 48, 64, 192):
        for y, x in ((8, 8), (16, 64), (24, 24), (64, 32)):
            text = FILTERED.format(c=c, y=y, x=x, q=x // 2)
            found[f"filtered {c}x{y}x{x}"] = text
    return found


STRIDED = _graphs()
"""Texts of graphs, by names of sources."""
