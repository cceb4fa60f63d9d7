"""Fusion: what shares a kernel, what is never stored, and every reason why a nest stays out."""

import pytest

from rutc.graph_opt.decide.fusion import MOST_OPERATIONS
from tests.graph_opt.plans import kernels, plan_of, reasons, stored

PRODUCT = """
dims m = 64, k = 64, n = 256, o = 32
%x : f32{k,m} = input "x" [m, k]
%w : f32{k,n} = input "w" [k, n]
%v : f32{m,n} = input "v" [m, n]
%h : f32{m,n} = sum{k} %x[k, m] * %w[k, n]
"""

ROWS = """
dims s = 64, d = 512, t = 7
%x : f32{d,s} = input "x" [s, d]
%a : f32{d,s} = %x[d, s] * 2.0
%m : f32{s} = max{d} %a[d, s]
"""


def test_an_epilogue_joins_a_product() -> None:
    plan = plan_of(
        f"""graph "epilogue" {PRODUCT}
        %r : f32{{m,n}} = max(%h[m, n], 0.0) + %v[m, n]
        output "r" [m, n] = %r
        """
    )
    assert kernels(plan) == [{"h", "r"}]
    assert stored(plan) == {"r"}
    assert plan.arena_bytes == 0
    assert not plan.refusals


def test_a_value_that_another_kernel_reads_is_stored_by_the_group() -> None:
    plan = plan_of(
        f"""graph "two readers" {PRODUCT}
        %r : f32{{m,n}} = max(%h[m, n], 0.0)
        %q : f32{{m,o}} = sum{{n}} %h[m, n] * %w[n, k=o]
        output "r" [m, n] = %r
        output "q" [m, o] = %q
        """
    )
    assert kernels(plan)[0] == {"h", "r"}
    assert {"q"} in kernels(plan)
    assert {"h", "r"} <= stored(plan)


@pytest.mark.parametrize("extent", [512, 1000])
def test_softmax_is_one_kernel(extent: int) -> None:
    plan = plan_of(
        f"""graph "softmax" {ROWS.replace("512", str(extent))}
        %e : f32{{d,s}} = exp(%a[d, s] - %m[s])
        %z : f32{{s}} = sum{{d}} %e[d, s]
        %y : f32{{d,s}} = %e[d, s] / %z[s]
        output "y" [s, d] = %y
        """
    )
    assert kernels(plan) == [{"a", "m", "e", "z", "y"}]
    assert stored(plan) == {"y"}
    assert next(plan.groups()).shared == ("s",)


def test_layer_norm_is_one_kernel() -> None:
    plan = plan_of(
        """
        graph "layer norm"
        dims s = 64, d = 512
        %x : f32{d,s} = input "x" [s, d]
        %g : f32{d} = input "g" [d]
        %m : f32{s}, %q : f32{s} = moments{d} %x[d, s]
        %n : f32{d,s} = (%x[d, s] - %m[s]) / sqrt(%q[s] + 0.1) * %g[d]
        output "n" [s, d] = %n
        """
    )
    assert kernels(plan) == [{"m", "q", "n"}]
    assert stored(plan) == {"n"}


def test_groups_run_in_the_order_of_their_needs() -> None:
    # %u could join %h only if %z, which needs %h, did not feed it.
    plan = plan_of(
        f"""graph "diamond" {PRODUCT}
        %z : f32{{m}} = max{{n}} %h[m, n]
        %u : f32{{m,n}} = %h[m, n] - %z[m]
        output "u" [m, n] = %u
        """
    )
    seen: set[str] = {n.out.name for n in plan.graph.inputs}
    for g in plan.groups():
        assert set(g.external_reads()) <= seen
        seen |= set(g.stored)


REFUSALS = {
    "its operand is computed by the host program": """
        %c : bool{} = input "c" []
        %i : f32{m,n} = if %c {
          %p : f32{m,n} = 1.0
          yield %p
        } else {
          %q : f32{m,n} = 2.0
          yield %q
        }
        %y : f32{m,n} = %i[m, n] + 1.0
        """,
    "another operand is computed from this group's result in between": """
        %z : f32{m} = max{n} %h[m, n]
        %y : f32{m,n} = %h[m, n] - %z[m=63-m]
        """,
    "it joined the kernel of another operand": """
        %g : f32{m,n} = sum{k} %x[k, m=63-m] * %w[k, n]
        %y : f32{m,n} = %h[m, n] + %g[m, n]
        """,
    "it runs over other dims than the group": """
        %y : f32{k,m,n} = %h[m, n] * %x[k, m]
        """,
    "it reads the group's values at other places than it writes": """
        %y : f32{m,n} = %h[m=63-m, n]
        """,
    "a reduction cannot follow in a register tile": """
        %y : f32{m} = max{n} %h[m, n]
        """,
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_why_a_nest_does_not_join_a_product(reason: str) -> None:
    outer = ", ".join("kmn" if "{k,m,n} =" in REFUSALS[reason] else "mn")
    outer = "m" if "%y : f32{m} =" in REFUSALS[reason] else outer
    text = f'graph "refusal" {PRODUCT} {REFUSALS[reason]} output "y" [{outer}] = %y\n'
    assert reason in {v for (reader, _), v in reasons(plan_of(text)).items() if reader == "y"}


ROW_REFUSALS = {
    "it does not run over the group's rows": "%y : f32{t} = %m[s=t]",
    "it reads other rows than its own": "%y : f32{d,s} = %a[d, s] - %m[s=63-s]",
    "its rows are not contiguous in memory": "%y : f32{d,s} = %a[d, s] - %m[s]",
    "it runs over other rows than the group": "%y : f32{} = sum{s} %m[s]",
    "it does not reduce over a dim of the group": "%y : f32{s} = sum{t} %a[d=t, s]",
    "the group's values would be computed again for every t": (
        "%y : f32{s,t} = sum{d} %a[d, s] * %x[d, s=t]"
    ),
}


@pytest.mark.parametrize("reason", ROW_REFUSALS)
def test_why_a_nest_does_not_join_rows(reason: str) -> None:
    nest = ROW_REFUSALS[reason]
    dims = nest[nest.index("{") + 1 : nest.index("}")]
    text = f'graph "refusal" {ROWS} {nest}\noutput "a" [s, d] = %a\noutput "y" [{dims}] = %y\n'
    found = reasons(plan_of(text))
    assert reason in {v for (reader, _), v in found.items() if reader == "y"}, found


def test_rows_that_leave_the_caches_are_stored() -> None:
    rows = ROWS.replace("512", "40000")
    text = f"""graph "long" {rows}
        %y : f32{{d,s}} = %a[d, s] - %m[s]
        output "y" [s, d] = %y
        """
    plan = plan_of(text)
    assert "the rows are too large to keep" in reasons(plan).values()
    assert "a" in stored(plan)


def test_a_reduction_joins_elementwise_nests_only_along_memory() -> None:
    text = f"""graph "columns" {ROWS.replace("[s, d]", "[d, s]")}
        output "m" [s] = %m
        """
    assert reasons(plan_of(text))["m", "a"] == "the reduced dim is not innermost"


def test_short_rows_are_faster_across() -> None:
    text = f"""graph "short" {ROWS.replace("d = 512", "d = 4")}
        output "a" [s, d] = %a
        output "m" [s] = %m
        """
    assert reasons(plan_of(text))["m", "a"] == "it is faster vectorised along its rows"


def test_a_reduction_of_shifted_rows_stays_out() -> None:
    text = f"""graph "shifted" {ROWS.replace("%a[d, s]", "%a[d, s=63-s]")}
        output "m" [s] = %m
        """
    assert reasons(plan_of(text))["m", "a"] == "it reads other rows than its own"


def test_kernels_of_long_chains_have_a_bounded_size() -> None:
    """Time to make code of a chain grows with its length, not faster."""
    steps = "".join(f"%v{i + 1} : f32{{m}} = sin(%v{i}[m]) * 0.5 + 0.25\n" for i in range(300))
    plan = plan_of(
        f"""graph "a long chain"
        dims m = 64
        %v0 : f32{{m}} = input "v" [m]
        {steps}
        output "y" [m] = %v300
        """
    )
    sizes = [len(stages) for stages in kernels(plan)]
    assert sum(sizes) == 300
    assert max(sizes) * 3 <= MOST_OPERATIONS
    assert len(sizes) == -(-300 // (MOST_OPERATIONS // 3))
    said = [reason for reason in reasons(plan).values() if "operations already" in reason]
    assert len(said) == len(sizes) - 1


TWO = """
dims s = 64, d = 512
%x : f32{d,s} = input "x" [s, d]
%a : f32{d,s} = %x[d, s] * 2.0
%b : f32{d,s} = max(%x[d, s], 0.0)
%m : f32{s} = max{d} %x[d, s]
"""


def test_kernels_of_what_one_nest_reads_become_one() -> None:
    plan = plan_of(
        f"""graph "two operands" {TWO}
        %y : f32{{d,s}} = %a[d, s] + %b[d, s]
        output "m" [s] = %m
        output "y" [s, d] = %y
        """
    )
    assert {"a", "b", "y"} in kernels(plan)
    assert stored(plan) == {"m", "y"}
    assert not {reader for reader, _ in reasons(plan)} & {"y"}


def test_kernels_of_rows_take_the_elements_that_are_read_beside_them() -> None:
    plan = plan_of(
        f"""graph "rows" {TWO}
        %y : f32{{d,s}} = %a[d, s] - %m[s]
        output "y" [s, d] = %y
        """
    )
    assert kernels(plan) == [{"a", "m", "y"}]
    assert stored(plan) == {"y"}


def test_a_nest_joins_the_kernel_of_which_it_reads_most() -> None:
    """Rows of both operands' kernels would be too large to keep together."""
    plan = plan_of(
        f"""graph "most" {TWO.replace("512", "20000")}
        %y : f32{{d,s}} = %a[d, s] - %m[s]
        output "y" [s, d] = %y
        """
    )
    assert kernels(plan) == [{"m"}, {"a", "y"}]
    assert stored(plan) == {"m", "y"}
    assert reasons(plan)["y", "m"] == "the rows are too large to keep"


def test_kernels_stay_apart_where_a_third_one_runs_between_them() -> None:
    plan = plan_of(
        """
        graph "between"
        dims m = 48, k = 16, n = 32
        %x : f32{m,n} = input "x" [m, n]
        %w : f32{k,n} = input "w" [k, n]
        %a : f32{m,n} = %x[m, n] * 2.0
        %h : f32{k,m} = sum{n} %a[m, n] * %w[k, n]
        %g : f32{m,n} = sum{k} %h[k, m] * %w[k, n]
        %b : f32{m,n} = %x[m, n] + %g[m=47 - m, n]
        %y : f32{m,n} = %a[m, n] + %b[m, n]
        output "y" [m, n] = %y
        """
    )
    assert {"b", "y"} in kernels(plan)
    assert not any({"a", "b"} <= k for k in kernels(plan))
    reason = "another operand is computed from this group's result in between"
    assert reasons(plan)["y", "a"] == reason


def test_large_kernels_stay_apart() -> None:
    def many(name: str) -> str:
        steps = "".join(
            f"%{name}{i + 1} : f32{{s}} = tanh(%{name}{i}[s]) * 2.0 + 1.0\n" for i in range(50)
        )
        return f"%{name}0 : f32{{s}} = %x[s] * 2.0\n{steps}"

    plan = plan_of(
        f"""graph "large"
        dims s = 64
        %x : f32{{s}} = input "x" [s]
        {many("a")}
        {many("b")}
        %y : f32{{s}} = %a50[s] + %b50[s]
        output "y" [s] = %y
        """
    )
    assert len(kernels(plan)) == 2
    assert any(r.startswith("the two kernels have ") for r in reasons(plan).values())
