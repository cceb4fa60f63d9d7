"""Layouts: innermost dims, copies that pay, halos, and orders that an interface fixes."""

import re

import numpy as np
import pytest

from rutc.tensor_ir import Nest
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.machine import Machine
from tests.graph_opt.plans import innermost, kernels, plan_of
from tests.machines import V3, V4

# Two convolutions with a clipping between them: only the ends are fixed.
CONVOLUTIONS = """
graph "convolutions"
dims n = 1, c = 16, y = 14, x = 14, m = 64, o = 32, ky = 3, kx = 3
%i : f32{c,n,x,y} = input "i" [n, c, y, x]
%v : f32{c,kx,ky,m} = const [m, c, ky, kx] data "v"
%w : f32{m,o} = const [o, m] data "w"
%a : f32{m,n,x,y} = sum{c,ky,kx} %i[c, n, x=x+kx-1, y=y+ky-1 else 0.0] * %v[c, kx, ky, m]
%r : f32{m,n,x,y} = max(%a[m, n, x, y], 0.0)
%b : f32{n,o,x,y} = sum{m} %r[m, n, x, y] * %w[m, o]
output "b" [n, y, x, o] = %b
"""

SCORES = """
graph "scores"
dims b = 2, s = 64, t = 64, d = 32
%q : f32{b,d,s} = input "q" [b, s, d]
%k : f32{b,d,t} = input "k" [b, t, d]
%p : f32{b,s,t} = sum{d} %q[b, d, s] * %k[b, d, t]
output "p" [b, s, t] = %p
"""

WINDOW = """
graph "window"
dims a = 40, k = 3, n = 16
%x : f32{a,n} = input "x" [a, n]
%w : f32{k,n} = input "w" [k, n]
%y : f32{a,n} = max(%x[a, n], 0.0)
%z : f32{a,n} = sum{k} %y[a=a+k-1, n else 0.0] * %w[k, n]
output "z" [a, n] = %z
"""


def constants(text: str, **shapes: tuple[int, ...]) -> str:
    """The text with each constant `data "name"` written out as zeros."""
    for name, shape in shapes.items():
        text = text.replace(f'data "{name}"', str(np.zeros(shape, int).tolist()))
    return text


def test_convolutions_put_channels_innermost() -> None:
    text = constants(CONVOLUTIONS, v=(64, 16, 3, 3), w=(32, 64))
    plan = plan_of(text)
    assert innermost(plan, "r") == "m"
    assert innermost(plan, "b") == "o"


def test_elementwise_values_follow_their_neighbours() -> None:
    plan = plan_of(
        """
        graph "chain"
        dims a = 64, b = 48
        %x : f32{a,b} = input "x" [b, a]
        %y : f32{a,b} = tanh(%x[a, b])
        %z : f32{a,b} = %y[a=63-a, b] * 2.0
        output "z" [b, a] = %z
        """
    )
    assert innermost(plan, "y") == "a"


def test_one_operand_of_scores_is_copied() -> None:
    # Both operands have d innermost, over which the product reduces.
    plan = plan_of(SCORES)
    copies = [n for n in plan.graph.nodes if isinstance(n, Nest) and n.is_view]
    assert len(copies) == 1
    product = next(n for n in plan.graph.nodes if isinstance(n, Nest) and n.out.name == "p")
    assert copies[0].out.name in {r.value for e in product.body for r in reads(e)}
    assert innermost(plan, copies[0].out.name) == innermost(plan, "p")


@pytest.mark.parametrize(("dims", "copied"), [("s = rows, d = 32", 0), ("s = rows, d = 37", 1)])
def test_rows_that_only_a_run_counts_read_the_operand_itself(dims: str, copied: int) -> None:
    """A copy would be made for a single row, too; kernels turn whole squares of it for many."""
    text = SCORES.replace("dims b = 2", "symbols rows = 1..512\ndims b = 2")
    plan = plan_of(text.replace("s = 64, t = 64, d = 32", f"{dims}, t = 64"))
    copies = [n for n in plan.graph.nodes if isinstance(n, Nest) and n.is_view]
    assert len(copies) == copied


def test_small_products_are_not_worth_a_copy() -> None:
    # Every element of the operands is read twice only.
    plan = plan_of(SCORES.replace("s = 64, t = 64, d = 32", "s = 2, t = 2, d = 512"))
    assert len(kernels(plan)) == 1


def test_windows_that_use_a_value_few_times_read_it_with_masks() -> None:
    plan = plan_of(WINDOW)
    assert plan.layouts["y"].halo == ()
    assert "fill the halo" not in str(plan)


PRODUCTS_OF_WINDOWS = """
graph "window"
dims a = 40, k = 3, n = 16, m = 64
%x : f32{a,n} = input "x" [a, n]
%w : f32{k,m,n} = input "w" [k, n, m]
%z : f32{a,m} = sum{k,n} %x[a=a+k-1, n else 0.0] * %w[k, m, n]
output "z" [a, m] = %z
"""

COMPUTED = PRODUCTS_OF_WINDOWS.replace("%x[a=", "%y[a=").replace(
    "%z : f32", "%y : f32{a,n} = tanh(%x[a, n])\n%z : f32"
)

WINDOW_OF_INPUT = """
graph "window"
dims a = 40, k = 3, n = 16
%x : f32{a,n} = input "x" [X]
%z : f32{a,n} = max{k} %x[a=a+k-1, n else -inf]
output "z" [Z] = %z
"""


def test_windows_of_many_products_read_a_halo() -> None:
    plan = plan_of(COMPUTED)
    layout = plan.layouts["y"]
    assert layout.halo == (("a", 1, 1),)
    assert layout.fill is not None
    assert layout.fill.value == 0.0
    assert layout.size == 42 * 16
    assert "fill the halo of %y" in str(plan)


def test_windows_in_steps_over_images_of_any_size_read_a_halo() -> None:
    """Of images made by windows in steps, whose sizes are quotients."""
    text = """
    graph "windows in steps"
    symbols w = 1..2147483647
    dims a = (w + 3) // 4, b = (w + 7) // 8, k = 3, m = 16, n = 16, t = 16
    %x : f32{a,n} = input "x" [a, n]
    %v : f32{k,m,n} = input "v" [k, n, m]
    %y : f32{a,n} = tanh(%x[a, n])
    %z : f32{b,m} = sum{k,n} %y[a=2*b+k-1, n else 0.0] * %v[k, m, n]
    output "z" [b, m] = %z
    """
    assert plan_of(text).layouts["y"].halo == (("a", 1, 1),)


def test_long_windows_over_rows_of_any_number_read_a_halo() -> None:
    """However few rows there commonly are: a window that is mostly outside then is not always."""
    text = """
    graph "where tokens are, by their neighbours"
    symbols t = 0..2147483647@16
    dims a = t, b = t + 1, g = 4, k = 128, m = 48, n = 48
    %x : f32{a,g,n} = input "x" [a, g, n]
    %v : f32{g,k,m,n} = input "v" [g, k, n, m]
    %y : f32{a,g,n} = tanh(%x[a, g, n])
    %z : f32{b,g,m} = sum{k,n} %y[a=b+k-64, g, n else 0.0] * %v[g, k, m, n]
    output "z" [b, g, m] = %z
    """
    assert plan_of(text).layouts["y"].halo == (("a", 64, 64),)


def test_an_input_that_is_used_often_is_copied_to_get_a_halo() -> None:
    plan = plan_of(PRODUCTS_OF_WINDOWS)
    assert plan.layouts["x"].halo == ()
    (copy,) = [name for name, layout in plan.layouts.items() if layout.halo]
    assert copy.startswith("x.halo")


@pytest.mark.parametrize(
    ("x", "z", "copied"), [("a, n", "a, n", 0), ("n, a", "n, a", 0), ("n, a", "a, n", 1)]
)
def test_windows_that_use_an_input_few_times_read_it_with_masks(
    x: str, z: str, copied: int
) -> None:
    plan = plan_of(WINDOW_OF_INPUT.replace("X", x).replace("Z", z))
    assert len([name for name, layout in plan.layouts.items() if layout.halo]) == copied


def test_taps_that_read_elements_of_their_own_read_them_with_masks() -> None:
    """So columns become a picture again: nothing is read twice, and a halo would be copied."""
    text = """
    graph "picture"
    dims a = 30, b = 30, u = 32, v = 32, k = 3, l = 3, p = 900
    %x : f32{k,l,p} = input "x" [k, l, p]
    %y : f32{a,b,k,l} = %x[k, l, p=30*a+b]
    %z : f32{u,v} = sum{k,l} %y[a=u-k, b=v-l, k, l else 0.0]
    output "z" [u, v] = %z
    """
    assert not any(layout.halo for layout in plan_of(text).layouts.values())
    many = text.replace("p = 900", "p = 900, m = 64").replace("f32{u,v}", "f32{m,u,v}")
    many = many.replace("%x :", '%w : f32{k,l,m} = input "w" [m, k, l]\n%x :')
    many = many.replace("else 0.0]", "else 0.0] * %w[k, l, m]").replace("[u, v] =", "[m, u, v] =")
    assert any(layout.halo for layout in plan_of(many).layouts.values())


def test_a_halo_has_one_fill_and_a_copy_another() -> None:
    other = "%u : f32{a,m} = max{k,n} %y[a=a+k-2, n else -inf] * %w[k, m, n]"
    text = COMPUTED.replace("%z : f32", f"{other}\n%z : f32")
    plan = plan_of(text.replace('output "z"', 'output "u" [a, m] = %u\noutput "z"'))
    halos = [str(layout) for layout in plan.layouts.values() if layout.halo]
    assert sorted(halo.rsplit(" ", 1)[-1] for halo in halos) == ["-inf", "0.0"]


def test_large_halos_are_read_with_tests_instead() -> None:
    text = WINDOW.replace("a = 40", "a = 4000").replace("a+k-1", "20000*k+a-19999")
    assert not any(layout.halo for layout in plan_of(text).layouts.values())


def test_a_halo_is_no_longer_than_windows_commonly_reach() -> None:
    """Where a window reaches as far as a run says, memory for its farthest reach is not there.

    So relative positions are read, of a matrix whose rows have become longer by one.
    """
    text = """
    graph "relative positions"
    symbols n = 1..2147483647
    dims d = 2*n*n - n, i = n, k = n, m = 96, a = n
    %x : f32{d} = input "x" [d]
    %w : f32{k,m} = input "w" [k, m]
    %y : f32{d} = tanh(%x[d])
    %z : f32{i,m} = sum{k} %y[d=2*n*i+k-n+1 else 0.0] * %w[k, m]
    output "z" [i, m] = %z
    """
    assert not any(layout.halo for layout in plan_of(text).layouts.values())
    few = plan_of(text.replace("2147483647", "4")).layouts["y"]
    assert few.halo


def test_what_a_scan_carries_lies_in_the_order_of_sorted_dims() -> None:
    plan = plan_of(
        """
        graph "scan"
        dims t = 4, a = 3, b = 5
        %x : f32{a,b} = input "x" [b, a]
        %l : f32{a,b}, %ys : f32{a,b,t} = scan t carry(%p : f32{a,b} = %x -> %n) collect(%n) {
          %n : f32{a,b} = %p[a, b] * 2.0
        }
        output "l" [b, a] = %l
        output "ys" [t, a, b] = %ys
        """
    )
    order = [a.dim for a in plan.layouts["p"].axes]
    for name in ("x.init", "n", "l"):
        assert [a.dim for a in plan.layouts[name].axes] == order
    # The interface wants another order, so the last state is copied out; the collected one is not.
    assert plan.places["l"].space == "arena"
    assert plan.places["ys"].space == "output"


def test_vectors_run_along_dims_of_fixed_size() -> None:
    plan = plan_of(
        """
        graph "every second place, for any batch"
        symbols batch = 1..1000
        dims b = batch, c = 64, o = 64, t = 20, x = 41
        %x : f32{b,c,x} = input "x" [b, c, x]
        %w : f32{c,o} = input "w" [c, o]
        %z : f32{b,c,t} = %x[b, c, x=2*t - 1 else 0.0] + %x[b, c, x=2*t + 1 else 0.0]
        %s : f32{b,o,t} = sum{c} %z[b, c, t] * %w[c, o]
        output "s" [b, o, t] = %s
        """
    )
    assert innermost(plan, "z") == "c"


def test_vectors_run_along_a_dim_that_varies_rather_than_a_few_heads() -> None:
    plan = plan_of(
        """
        graph "weights of attention for texts of any length"
        symbols seq = 1..512
        dims h = 12, q = seq, k = seq, d = 64
        %x : f32{d,h,q} = input "x" [h, q, d]
        %y : f32{d,h,k} = input "y" [h, k, d]
        %s : f32{h,k,q} = sum{d} %x[d, h, q] * %y[d, h, k]
        %m : f32{h,q} = max{k} %s[h, k, q]
        %e : f32{h,k,q} = exp(%s[h, k, q] - %m[h, q])
        %z : f32{h,q} = sum{k} %e[h, k, q]
        %o : f32{d,h,q} = sum{k} %e[h, k, q] * %y[d, h, k]
        %p : f32{d,h,q} = %o[d, h, q] / %z[h, q]
        output "p" [h, q, d] = %p
        """
    )
    assert innermost(plan, "s") == innermost(plan, "e") != "h"


def test_rows_of_a_sum_of_parts_lie_together() -> None:
    """What only the sum goes over, here p, does not lie between dims that rows go along."""
    plan = plan_of(
        """
        graph "parts"
        dims c = 32, i = 4, m = 16, p = 2, q = 8
        %x : f32{c,i,p,q} = input "x" [c, q, p, i]
        %w : bf16{c,m,p} = input "w" [p, c, m]
        %h : bf16{c,i,p,q} = bf16(%x[c, i, p, q])
        %l : bf16{c,i,p,q} = bf16(%x[c, i, p, q] - f32(%h[c, i, p, q]))
        %y : f32{i,m,q} = sum{c,p} f32(%h[c,i,p,q])*f32(%w[c,m,p]) + f32(%l[c,i,p,q])*f32(%w[c,m,p])
        output "y" [q, i, m] = %y
        """
    )
    for part in "hl":
        assert [a.dim for a in plan.layouts[part].axes] == ["p", "q", "i", "c"]


@pytest.mark.parametrize(("machine", "along"), [(V3, "c"), (V4, "x")])
def test_a_resampled_axis_is_stored_across_rather_than_gathered_along(
    machine: Machine, along: str
) -> None:
    """Channels side by side are loaded whole wherever they are; results are transposed.

    Where lanes pick elements of short rows from registers, nothing has to be moved for it.
    """
    text = constants(
        """
        graph "resampled"
        dims c = 64, y = 56, x = 56, v = 112, k = 2, u = 112, j = 2
        %i : f32{c,x,y} = input "i" [c, y, x]
        %p : i64{k,v} = const [v, k] data "p"
        %q : f32{k,v} = const [v, k] data "q"
        %s : i64{j,u} = const [u, j] data "s"
        %t : f32{j,u} = const [u, j] data "t"
        %a : f32{c,v,x} = sum{k} %i[c, x, y=%p[k, v]] * %q[k, v]
        %b : f32{c,u,v} = sum{j} %a[c, v, x=%s[j, u]] * %t[j, u]
        output "b" [c, v, u] = %b
        """,
        p=(112, 2),
        q=(112, 2),
        s=(112, 2),
        t=(112, 2),
    )
    assert innermost(plan_of(text, machine), "a") == along


def test_of_a_picture_that_is_sampled_anywhere_a_copy_has_its_channels_side_by_side() -> None:
    """An element at a place that data tell lies on a line that nothing foresees."""
    plan = plan_of(
        """
        graph "sampled"
        dims c = 8, h = 40, w = 40, y = 30, x = 30, k = 2, j = 2
        %i : f32{c,h,w} = input "i" [c, h, w]
        %p : i64{k,x,y} = input "p" [k, y, x]
        %q : i64{j,x,y} = input "q" [j, y, x]
        %b : f32{c,x,y} = sum{j,k} %i[c, h=%p[k, x, y], w=%q[j, x, y] else 0.0]
        output "b" [c, y, x] = %b
        """,
    )
    assert innermost(plan, "i.near.c") == "c"


def test_a_sum_over_strided_windows_lies_as_its_operand_does() -> None:
    plan = plan_of(
        """
        graph "windows"
        dims c = 64, y = 56, x = 56, h = 112, w = 112, ky = 3, kx = 3
        %i : f32{c,h,w} = input "i" [c, h, w]
        %s : f32{c,x,y} = sum{ky,kx} %i[c, h=ky + 2*y - 1, w=kx + 2*x - 1 else 0.0]
        %m : f32{c,x,y} = %s[c, x, y] / 9.0
        output "m" [c, y, x] = %m
        """
    )
    assert innermost(plan, "s") == "x"
    # No copy with a halo: masks at the edges.
    assert len(kernels(plan)) == 1


PLANES = """
graph "planes"
dims c = 256, y = 14, x = 14, p = 28, q = 28, o = 256, k = 3, l = 3
%i : f32{c,p,q} = input "i" [c, p, q]
%w : f32{c,k,l,o} = input "w" [c, k, l, o]
%r : f32{o,x,y} = sum{c,k,l} %i[c, p=2*y+k-1, q=2*x+l-1 else 0.0] * %w[c, k, l, o]
output "r" [o, y, x] = %r
"""

PIXELS = """
graph "pixels"
dims c = 512, p = 196, o = 256
%i : f32{c,p} = input "i" [c, p]
%w : f32{c,o} = input "w" [c, o]
%r : f32{o,p} = sum{c} %i[c, p] * %w[c, o]
output "r" [o, p] = %r
"""


@pytest.mark.parametrize("text", [PLANES, PIXELS])
def test_channels_of_planes_that_long_sums_go_over_are_laid_side_by_side(text: str) -> None:
    plan = plan_of(text)
    (copy,) = [n.out.name for n in plan.graph.nodes if isinstance(n, Nest) and n.is_view]
    assert innermost(plan, copy) == "c"


@pytest.mark.parametrize(
    ("text", "sizes", "fewer"),
    [(PLANES, "c = 256", "c = 3"), (PIXELS, "c = 512", "c = 64"), (PIXELS, "o = 256", "o = 64")],
)
def test_planes_of_few_channels_or_few_uses_stay_as_they_are(
    text: str, sizes: str, fewer: str
) -> None:
    plan = plan_of(text.replace(sizes, fewer))
    assert all(layout.axes[-1].dim != "c" for layout in plan.layouts.values())


@pytest.mark.parametrize(
    ("pixels", "channels", "sums", "along"),
    [
        (4096, 64, 256, "c"),
        (1024, 320, 320, "c"),
        # Steps of 12,544 bytes go over a quarter of all sets, those of 3,136 over all.
        (3136, 64, 256, "p"),
        (784, 64, 256, "p"),
        (4096, 8, 256, "p"),
        (4096, 64, 32, "p"),
    ],
)
def test_planes_that_lie_in_one_set_of_the_first_cache_are_laid_side_by_side(
    pixels: int, channels: int, sums: int, along: str
) -> None:
    """A set holds few lines, however few the channels are: they come anew for every tile."""
    text = PIXELS.replace('input "w" [c, o]', 'const [c, o] data "w"')
    for size in (f"c = {channels}", f"p = {pixels}", f"o = {sums}"):
        text = re.sub(rf"{size[0]} = \d+", size, text)
    plan = plan_of(constants(text, w=(channels, sums)))
    (total,) = (n for n in plan.graph.nodes if isinstance(n, Nest) and n.bound)
    (planes,) = (r.value for e in total.body for r in reads(e) if "o" not in dict(r.coords))
    assert innermost(plan, planes) == along


def test_a_computed_value_is_stored_once_as_long_sums_read_it() -> None:
    computed = PIXELS.replace("%i[c, p] *", "%a[c, p] *").replace(
        "%r : f32", "%a : f32{c,p} = tanh(%i[c, p])\n%r : f32"
    )
    plan = plan_of(computed)
    (kept, _) = (g.stored for g in plan.groups())
    assert [innermost(plan, v) for v in kept] == ["c"]


FAR_WINDOWS = """
graph "far windows"
dims c = 86, y = 16, x = 16, p = 16, q = 16, o = 96, k = 3, l = 3
%i : f32{c,p,q} = input "i" [c, p, q]
%w : f32{c,k,l,o} = const [c, k, l, o] data "w"
%r : f32{o,x,y} = sum{c,k,l} %i[c, p=y+6*k-6, q=x+6*l-6 else 0.0] * %w[c, k, l, o]
output "r" [o, y, x] = %r
"""


def test_copies_with_channels_side_by_side_have_the_halo_of_planes() -> None:
    """Rows of far windows are not read outside of the planes; along them the halo stays."""
    plan = plan_of(constants(FAR_WINDOWS, w=(86, 3, 3, 96)))
    (layout,) = [x for x in plan.layouts.values() if x.halo]
    assert layout.halo == (("q", 6, 6),)
    assert layout.axes[-1].dim == "c"


CELL = """
graph "cell"
dims n = 8, h = 64, k = 64, t = 5
%s : f32{{h,n}} = input "s" [{axes}]
%x : f32{{k,n,t}} = input "x" [t, n, k]
%w : f32{{h,k}} = const [h, k] data "w"
%l : f32{{k,n}}, %ys : f32{{k,n,t}} = scan t carry(%p : f32{{k,n}} = %i -> %c) collect(%c) {{
  %z : f32{{h,n}} = sum{{k}} %p[k, n] * %w[h, k]
  %c : f32{{k,n}} = tanh(%z[h=k, n] + %x[k, n, t])
}}
output "last" [n, k] = %l
output "ys" [t, n, k] = %ys
"""


@pytest.mark.parametrize("axes", ["n, h", "h, n"])
def test_what_a_scan_carries_lies_as_its_body_is_fastest(axes: str) -> None:
    """The longer dim of products is innermost; only what the caller has otherwise is copied."""
    text = constants(CELL.format(axes=axes), w=(64, 64))
    text = text.replace("%l :", "%i : f32{k,n} = %s[h=k, n]\n%l :")
    plan = plan_of(text)
    assert {innermost(plan, v) for v in ("p", "c", "z", "ys", "l", "i")} <= {"k", "h"}


def test_a_batch_that_is_mostly_one_is_not_innermost_in_what_a_scan_carries() -> None:
    """Were it, larger ones would be read and written element by element."""
    cell = CELL.format(axes="n, h").replace("dims n = 8", "symbols batch = 1..64@1\ndims n = batch")
    text = constants(cell, w=(64, 64)).replace("%l :", "%i : f32{k,n} = %s[h=k, n]\n%l :")
    plan = plan_of(text)
    for v in ("p", "c", "ys", "l"):
        assert plan.layouts[v].axes[-1].dim == "k"


@pytest.mark.parametrize(("features", "along"), [(20, "t"), (61, "t"), (65, "n")])
def test_what_data_choose_among_few_is_read_across_rows(features: int, along: str) -> None:
    """Lanes along the trees pick from one row, which registers hold: of 64 numbers at most."""
    plan = plan_of(
        f"""
        graph "forest"
        dims n = 64, t = 100, f = {features}
        %x : f32{{f,n}} = input "x" [n, f]
        %k : i64{{t}} = input "k" [t]
        %a : i64{{n,t}} = i64(%x[f=%k[t], n] <= 0.5)
        %b : i64{{n,t}} = i64(%x[f=%a[n, t], n] <= 0.25)
        %c : f32{{n,t}} = %x[f=%b[n, t], n]
        %y : f32{{n,t}} = %c[n, t=99 - t]
        output "y" [n, t] = %y
        """
    )
    assert innermost(plan, "c") == along


def test_a_value_beside_itself_is_no_window_of_it() -> None:
    plan = plan_of(
        """
        graph "twice"
        dims a = 24, b = 48, c = 33
        %x : f32{a,c} = input "x" [c, a]
        %v : f32{a,c} = tanh(%x[a, c])
        %y : f32{b,c} = select(index(b - 24) < 0, %v[a=b, c else 0.0], %v[a=b - 24, c else 0.0])
        output "y" [b, c] = %y
        """
    )
    assert not any(layout.halo for layout in plan.layouts.values())
    assert {v.name for n in plan.graph.nodes if isinstance(n, Nest) for v in n.outs} == {"v", "y"}
