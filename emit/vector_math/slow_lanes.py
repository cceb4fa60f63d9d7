"""What is seldom wanted and takes long: branched around, and done one lane after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.emit.llvm import ir
from rutc.emit.vector_math.lanes import Mask

Values = Sequence[ir.Value]


def where_wanted(
    name: str, wanted: Mask, operands: Values, otherwise: Values, one: Callable[[Values], Values]
) -> Values:
    """What `one` makes of the operands of a lane where `wanted`, else `otherwise`.

    Skipped when no lane wants it. `name` is that of the blocks.
    """
    builder, count = wanted.lanes.builder, wanted.lanes.count
    before = builder.block
    slow = builder.append_basic_block(f"{name}.large")
    done = builder.append_basic_block(f"{name}.done")
    builder.cbranch(wanted.any(), slow, done)
    builder.position_at_end(slow)
    if count is None:
        made = one(operands)
    else:
        made = _each_lane(name, builder, count, operands, [x.type for x in otherwise], one)
    chosen = [
        builder.select(wanted.value, x, other) for x, other in zip(made, otherwise, strict=True)
    ]
    after = builder.block
    builder.branch(done)
    builder.position_at_end(done)
    pairs = zip(chosen, otherwise, strict=True)
    return [builder.merged((other, before), (x, after)) for x, other in pairs]


def _each_lane(
    name: str,
    builder: ir.IRBuilder,
    count: int,
    operands: Values,
    types: Sequence[ir.Type],
    one: Callable[[Values], Values],
) -> Values:
    """Vectors of what `one` makes of each lane, by a loop."""
    entry = builder.block
    body = builder.append_basic_block(f"{name}.lane")
    after = builder.append_basic_block(f"{name}.lanes_done")
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(ir.I32)
    results = [builder.phi(t) for t in types]
    made = one([builder.extract_element(x, index) for x in operands])
    following = [builder.insert_element(r, x, index) for r, x in zip(results, made, strict=True)]
    next_index = builder.add(index, ir.Constant(ir.I32, 1))
    index.add_incoming(ir.Constant(ir.I32, 0), entry)
    index.add_incoming(next_index, body)
    for r, x in zip(results, following, strict=True):
        r.add_incoming(ir.Constant(r.type, ir.Undefined), entry)
        r.add_incoming(x, body)
    more = builder.icmp_unsigned("<", next_index, ir.Constant(ir.I32, count))
    builder.cbranch(more, body, after)
    builder.position_at_end(after)
    return following
