"""The launches of kernels: those whose code is not made yet, and what is known once it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rutc.base.record import record
from rutc.driver.parts.compile_job import CompileJob, Made
from rutc.driver.parts.plan_cost import Work
from rutc.emit.host_program import kernel_call
from rutc.emit.host_program.kernel_call import KernelCall, KernelId, Ref
from rutc.graph_opt.plan import Near
from rutc.tensor_ir.canonical import Canonical
from rutc.tensor_ir.indices.affine import Index, Size
from rutc.tensor_ir.kernel import Kernel
from rutc.tuner.choice import OnRecord
from rutc.tuner.sharing import Shared


@record
class Pending:
    """A launch of kernels whose code is not made yet; several are the parts of a chain.

    `near` are the values that pass to or from kernels in turn with it, `turns` how many they
    commonly take; `work` is of all turns.
    """

    id: KernelId
    name: str
    kernels: tuple[Kernel, ...]
    canonical: Canonical
    job: CompileJob
    work: Work
    origin: tuple[str, ...]
    near: Mapping[str, Near]
    turns: int

    def named(self, step: str) -> str:
        """The text of a step of a schedule, with the plan's names in the place of the job's."""
        names = {**self.canonical.dims, **self.canonical.buffers}
        return re.sub(r"\b[bd][0-9]+\b", lambda found: names.get(found[0], found[0]), step)


@record
class KernelFacts:
    """What the manifest says of one launch.

    Where its sizes depend on `symbols`, numbers are those at common sizes. `plan` numbers the
    artifact's plans. `records` has what is on record of the schedules of its kernels, None for
    default ones; it is empty where all are. Operations, bytes and `cycles` are of all its `turns`
    with others; where a loop launches it, of one trip. The cycles are estimated, of one thread
    whose caches have the operands, and most of them are `bound_by` one kind of work. Its arithmetic
    alone would take those of `computing`.
    """

    name: str
    symbol: str
    origin: tuple[str, ...]
    flops: int
    bytes: int
    tasks: int
    schedule: str
    symbols: tuple[str, ...] = ()
    plan: int = 0
    records: tuple[OnRecord | None, ...] = ()
    turns: int = 1
    cycles: int = 0
    computing: int = 0
    bound_by: str = ""


@record
class Launched:
    """What is known of a launch whose kernel is made: all that it calls it with but the turns.

    Its `work` are operations, `moved` the bytes of its operands but constants: formulas of sizes.
    """

    made: Made
    args: tuple[Ref, ...]
    tasks: Size
    thread_bytes: Size
    sizes: tuple[Index, ...]
    near: tuple[kernel_call.Near, ...]
    facts: KernelFacts
    shared: Shared
    work: Index
    moved: Index

    def call(self, turns: Size) -> KernelCall:
        """What the program's table has of it."""
        return KernelCall(
            self.made.symbol,
            self.args,
            self.tasks,
            self.facts.origin,
            self.sizes,
            turns,
            self.near,
            self.thread_bytes,
        )
