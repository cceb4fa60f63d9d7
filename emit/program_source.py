"""The generated C of an artifact: tables of the host program, entry points, and embedded data."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import assert_never

from rutc.base.record import record
from rutc.emit.call_source import MAX_NDIM, call_tables, routine_declarations
from rutc.emit.elements import element_of
from rutc.emit.elf import NOTE_SOURCE
from rutc.emit.program import (
    Bind,
    Branch,
    Call,
    Copy,
    Fail,
    InTurn,
    Launch,
    Port,
    Program,
    Ref,
    Repeat,
    Reserve,
    Step,
    While,
    counters,
    told_by,
    walk,
)
from rutc.emit.size_source import LARGEST_BYTES, SizeTable
from rutc.emit.text import c_comment, c_string
from rutc.errors import InternalError, UserError
from rutc.tensor_ir.affine import Index, Size, plain, product

MAX_SYMBOLS = 64
"""The most sizes that the host runtime hands to a kernel."""
MANIFEST_SYMBOL = "rutc_manifest"

_HIDDEN = '__attribute__((visibility("hidden")))'


@record
class WeightsFile:
    """The image of weights in a file of its own, which ends with the 32 bytes of its SHA-256."""

    byte_count: int
    sha256: bytes


def symbol_prefix(name: str) -> str:
    """Returns the C identifier that the model's entry points begin with.

    `"resnet50-v1.7"` -> `"resnet50_v1_7"`; `"3d"` -> `"model_3d"`.
    """
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
    reserved = not identifier or identifier[0] in "_0123456789" or identifier.startswith("rutc")
    return f"model_{identifier.lstrip('_')}" if reserved else identifier


@record
class _Row:
    """One entry of the flattened steps; fields as in `rutc_step`."""

    op: str
    kernel: str = ""
    buffer: int = 0
    count: int = 0
    target: int = 0
    symbol: int = 0
    symbols: int = 0
    name: str = ""
    origin: str = ""

    def __str__(self) -> str:
        fields = [f"RUTC_{self.op}", self.kernel or "NULL"]
        fields += map(str, (self.buffer, self.count, self.target, self.symbol, self.symbols))
        fields += [c_string(self.name), c_string(self.origin)]
        return f"{{{', '.join(fields)}}}"


@dataclass
class _Tables:
    """The flattened program while it is being built."""

    sizes: SizeTable
    rows: list[_Row] = field(default_factory=list)
    buffers: list[Ref] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    launch_symbols: list[int] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    nears: list[str] = field(default_factory=list)
    bound: dict[str, int] = field(default_factory=dict)

    def add_buffers(self, *refs: Ref) -> int:
        first = len(self.buffers)
        self.buffers.extend(refs)
        return first

    def reserve(self) -> int:
        """Takes the place of a row whose target is not known yet."""
        self.rows.append(_Row("JUMP"))
        return len(self.rows) - 1

    def add_steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            match step:
                case Launch():
                    first = self.add_buffers(*step.args)
                    origin = ", ".join(step.origin)
                    if len(step.symbols) > MAX_SYMBOLS:
                        raise UserError(
                            f"{origin} needs {len(step.symbols)} symbolic sizes, and no more than "
                            f"{MAX_SYMBOLS} can be told to one kernel: fix some with --dim"
                        )
                    row = _Row(
                        "LAUNCH",
                        step.kernel,
                        first,
                        self.sizes.code(step.tasks),
                        self.sizes.code(step.turns),
                        symbol=len(self.launch_symbols),
                        symbols=len(step.symbols),
                    )
                    self.launch_symbols += [self.sizes.places[s] for s in step.symbols]
                    self.rows.append(_with_names(row, step.kernel, origin))
                case InTurn():
                    self.add_turns(step)
                case Copy():
                    first = self.add_buffers(step.dst, step.src)
                    self.rows.append(
                        _with_names(
                            _Row("COPY", "", first, self.sizes.code(step.bytes)), "copy", ""
                        )
                    )
                case Branch():
                    self.add_branch(step)
                case Repeat():
                    self.add_repeat(step)
                case While():
                    self.add_while(step)
                case Call():
                    refs = [o.ref for o in (*step.args, *step.results)]
                    origin = ", ".join(step.origin)
                    first, number = self.add_buffers(*refs), len(self.calls)
                    self.calls.append(step)
                    name = step.routine
                    row = _Row("CALL", buffer=first, target=number, symbol=step.depth)
                    self.rows.append(_with_names(row, name, origin))
                case Bind():
                    place = self.sizes.places[step.symbol]
                    first = self.add_buffers(step.source)
                    row = _Row("BIND", buffer=first, target=self.bound[step.symbol], symbol=place)
                    self.rows.append(_with_names(row, step.symbol, ", ".join(step.origin)))
                case Reserve():
                    if isinstance(step.bytes, Index):
                        self.sizes.reserved[step.bytes] = None
                    count = self.sizes.code(step.bytes)
                    self.rows.append(_Row("RESERVE", count=count, target=step.block))
                case Fail():
                    self.rows.append(_Row("FAIL", name=step.message))
                case _:
                    assert_never(step)

    def add_turns(self, step: InTurn) -> None:
        """`in turn n; launches` -> `IN_TURN n, L; launches; L:`."""
        place, first, near = self.reserve(), len(self.buffers), len(self.nears)
        for launch in step.body:
            assert isinstance(launch, Launch)
            begin = len(self.buffers) - first
            self.nears += [f"{{{begin + n.argument}, {n.offset}, {n.bytes}}}" for n in launch.near]
            self.add_steps((launch,))
        row = _Row("IN_TURN", "", first, self.sizes.code(step.trips), len(self.rows))
        self.rows[place] = replace(row, symbol=len(self.turns))
        self.turns.append(f"{{{step.buffer_count}, {near}, {len(self.nears) - near}}}")

    def add_branch(self, step: Branch) -> None:
        """`branch c; then; else; orelse` -> `BRANCH c, L1; then; JUMP L2; L1: orelse; L2:`.

        On a size it is `UNLESS`, which goes on at L1 as `BRANCH` does.
        """
        if isinstance(step.cond, Ref):
            row = _Row("BRANCH", buffer=self.add_buffers(step.cond))
        else:
            row = _Row("UNLESS", count=self.sizes.code(step.cond))
        branch = self.reserve()
        self.add_steps(step.then)
        if step.orelse:
            jump = self.reserve()
            self.rows[branch] = replace(row, target=len(self.rows))
            self.add_steps(step.orelse)
            self.rows[jump] = _Row("JUMP", target=len(self.rows))
        else:
            self.rows[branch] = replace(row, target=len(self.rows))

    def add_repeat(self, step: Repeat) -> None:
        """`repeat s n; body` -> `REPEAT s, n, L2; L1: body; NEXT s, n, L1; L2:`."""
        repeat = self.reserve()
        self.add_steps(step.body)
        trips, symbol = self.sizes.code(step.trips), self.sizes.places[step.symbol]
        self.rows.append(_Row("NEXT", count=trips, target=repeat + 1, symbol=symbol))
        self.rows[repeat] = _Row("REPEAT", count=trips, target=len(self.rows), symbol=symbol)

    def add_while(self, step: While) -> None:
        """`while c; body` -> `L1: BRANCH c, L2; body; JUMP L1; L2:`."""
        condition = self.add_buffers(step.cond)
        branch = self.reserve()
        self.add_steps(step.body)
        self.rows.append(_Row("JUMP", target=branch))
        self.rows[branch] = _Row("BRANCH", "", condition, 0, len(self.rows))


def _with_names(row: _Row, name: str, origin: str) -> _Row:
    return replace(row, name=name, origin=origin)


def program_source(program: Program, number: int, weights_offset: int) -> str:
    """Returns `program<number>.c`: the tables that the host runtime executes.

    Raises:
        UserError: a kernel needs more symbolic sizes than can be told to it.
    """
    symbols = [name for name, _ in program.symbols]
    bound = [name for name, _ in program.bound]
    sizes = SizeTable((*symbols, *bound, *counters(program.steps)))
    tables = _Tables(sizes, bound={name: number for number, name in enumerate(bound)})
    tables.add_steps(program.steps)
    body = [
        *_port_tables(program, tables),
        "",
        *_buffer_table(program, tables),
        "",
        *_step_table(tables),
        "",
        *call_tables(tables.calls, sizes),
        "",
        *_program_struct(program, tables, number, weights_offset),
        "",
    ]
    ports = [p for p in (*program.inputs, *program.outputs) if p.block is None]
    memory = (program.arena_bytes, *map(_port_bytes, ports))
    return "\n".join([
        f"/* Host program {number} of {c_comment(program.name)}, generated by rutc. */",
        '#include "program.h"',
        "",
        *_kernel_declarations(program),
        *routine_declarations(tables.calls),
        "",
        "",
        *_feature_table(program),
        "",
        *sizes.source(memory),
        "",
        *_symbol_table(program),
        "",
        *_string_table(program.strings),
        "",
        *body,
    ])  # fmt: skip


def entry_source(name: str, programs: int, weights_file: WeightsFile | None) -> str:
    """Returns `entry.c`: the model of that many programs, and the entry points."""
    numbers = range(programs)
    lines = ["/* The entry points of a model, generated by rutc. */", '#include "entry.h"', ""]
    lines += [f"extern const char {MANIFEST_SYMBOL}[] {_HIDDEN};"]
    lines += [f"extern const rutc_program rutc_program_{n} {_HIDDEN};" for n in numbers]
    listed = ", ".join(f"&rutc_program_{n}" for n in numbers)
    lines += ["", f"static const rutc_program *const programs[] = {{{listed}}};"]
    file = "NULL"
    if weights_file is not None:
        digest = ", ".join(map(str, weights_file.sha256))
        file = "&weights_file"
        lines += ["static const rutc_weights_file weights_file = {"]
        lines += [f"    .bytes = {weights_file.byte_count}, .sha256 = {{{digest}}}}};"]
    lines += [f"static const rutc_model model = {{programs, {programs}, {file}}};", ""]
    return "\n".join([*lines, *_entry_points(symbol_prefix(name)), ""])


def data_source() -> str:
    """Returns assembly that places `manifest.json` into a section of its own, and a note."""
    lines = [
        '    .section .rutc_manifest,"a",%progbits',
        f"    .globl {MANIFEST_SYMBOL}",
        f"    .hidden {MANIFEST_SYMBOL}",
        f"{MANIFEST_SYMBOL}:",
        '    .incbin "manifest.json"',
        "    .byte 0",
    ]
    lines += [NOTE_SOURCE, '    .section .note.GNU-stack,"",%progbits']
    return "\n".join(lines) + "\n"


def export_map(name: str, *, objects: bool = False) -> str:
    """Returns the linker's version script: what the library exports."""
    symbols = "".join(f" {symbol};" for symbol in exported_symbols(name, objects=objects))
    return f"{{ global:{symbols} local: *; }};\n"


def exported_symbols(name: str, *, objects: bool = False) -> tuple[str, ...]:
    """Returns the names of the artifact's entry points, and the string that tells their prefix.

    With `objects` also what exchanges Python's objects (`python.h`).
    """
    prefix = symbol_prefix(name)
    entries = ["abi_version", "manifest", "open", "output_shapes", "run", "profile", "last_error"]
    entries += ["close"]
    exchanging = [f"rutc_python_{what}" for what in ("read", "write", "maps")] if objects else []
    return (*(f"{prefix}_{entry}" for entry in entries), "rutc_artifact_prefix", *exchanging)


def _kernel_declarations(program: Program) -> Iterator[str]:
    kernels = dict.fromkeys(s.kernel for s in walk(program.steps) if isinstance(s, Launch))
    yield f"#define KERNEL(name) {_HIDDEN} void name( \\"
    yield "    void *const *bufs, const int64_t *syms, int64_t begin, int64_t end)"
    yield from (f"KERNEL({kernel});" for kernel in kernels)


def _feature_table(program: Program) -> Iterator[str]:
    names = "".join(f"{c_string(feature)}, " for feature in program.features)
    yield f"static const char *const features[] = {{{names}NULL}};"


def _symbol_table(program: Program) -> Iterator[str]:
    for table, symbols in (("symbols", program.symbols), ("bound", program.bound)):
        rows = []
        for name, (low, high) in symbols:
            place = ", ".join(map(str, told_by(program.inputs, name) or (0, 0, 1)))
            rows.append(f"{{{c_string(name)}, {low}, {high}, {place}}}")
        yield from _array(f"static const rutc_symbol {table}[]", rows, "{0}")


def _port_tables(program: Program, tables: _Tables) -> Iterator[str]:
    """Yields the ports with, for each, the numbers of the buffers that lie in it."""
    rows: list[str] = []
    patches: list[int] = []
    for space, ports in (("input", program.inputs), ("output", program.outputs)):
        for index, port in enumerate(ports):
            places = [
                n for n, r in enumerate(tables.buffers) if (r.space, r.index) == (space, index)
            ]
            shape = f"{space}_{index}_shape"
            codes = ", ".join(str(tables.sizes.code(x)) for x in port.shape)
            yield f"static const int64_t {shape}[] = {{{codes or '0'}}};"
            fixed = "NULL"
            if port.fixed is not None:
                fixed = f"{space}_{index}_fixed"
                listed = ", ".join(map(str, port.fixed.data)) or "0"
                yield f"static const uint8_t {fixed}[] = {{{listed}}};"
            row = [*_port_fields(port, shape, tables.sizes), len(patches), len(places), fixed]
            row.append("NULL" if port.fixed is None else c_string(port.fixed.text))
            row.append(-1 if port.block is None else port.block)
            rows.append(f"{{{', '.join(map(str, row))}}}")
            patches += places
    blocks: list[str] = []
    for block in range(program.blocks):
        places = [n for n, r in enumerate(tables.buffers) if (r.space, r.index) == ("block", block)]
        blocks.append(f"{{{len(patches)}, {len(places)}}}")
        patches += places
    yield from _array("static const rutc_region blocks[]", blocks, "{0}")
    yield from _array("static const int64_t patches[]", map(str, patches), "0")
    yield from _array("static const rutc_port ports[]", rows, "{0}")


def _port_bytes(port: Port) -> Size:
    return plain(product(port.shape) * element_of(port.dtype).bytes)


def _port_fields(port: Port, shape: str, sizes: SizeTable) -> list[str | int]:
    element = element_of(port.dtype)
    if len(port.shape) > MAX_NDIM:
        raise InternalError(f"{port} has more than {MAX_NDIM} dimensions")
    size = _port_bytes(port)
    if isinstance(size, int) and size >= LARGEST_BYTES:
        raise InternalError(f"{port} has {size} bytes, more than can be addressed")
    fields: list[str | int] = [c_string(port.name), c_string(port.dtype)]
    fields += [element.code, element.bits]
    fields += [element.bytes, element.alignment, len(port.shape), shape]
    text = ", ".join(map(str, port.shape))
    fields += [c_string(f"[{text}]"), sizes.code(size)]
    return fields


def _buffer_table(program: Program, tables: _Tables) -> Iterator[str]:
    def row(ref: Ref) -> str:
        offset = tables.sizes.code(ref.offset)
        match ref.space:
            case "arena":
                return f"{{RUTC_ARENA, 0, {offset}}}"
            case "weights":
                return f"{{RUTC_WEIGHTS, 0, {offset}}}"
            case "block":
                return f"{{RUTC_BLOCK, {ref.index}, {offset}}}"
            case "input":
                return f"{{RUTC_PORT, {ref.index}, {offset}}}"
            case "output":
                return f"{{RUTC_PORT, {len(program.inputs) + ref.index}, {offset}}}"
            case _:
                assert_never(ref.space)

    yield from _array("static const rutc_ref buffers[]", map(row, tables.buffers), "{0}")


def _step_table(tables: _Tables) -> Iterator[str]:
    yield from _array("static const int64_t launch_symbols[]", map(str, tables.launch_symbols), "0")
    yield from _array("static const rutc_near nears[]", tables.nears, "{0}")
    yield from _array("static const rutc_turns turns[]", tables.turns, "{0}")
    yield "/* op, kernel, buffer, count, target, symbol, symbol_count, name, origin */"
    yield from _array("static const rutc_step steps[]", map(str, tables.rows), "{0}")


def _string_table(strings: tuple[str, ...]) -> Iterator[str]:
    rows = [f"{{{c_string(text)}, {len(text.encode())}}}" for text in strings]
    yield from _array("static const rutc_text strings[]", rows, "{0}")


def _array(declaration: str, rows: Iterator[str] | list[str], empty: str) -> Iterator[str]:
    """Yields a table with the number of each row; C has no empty arrays, hence `empty`."""
    yield f"{declaration} = {{"
    listed = [f"    /* {number} */ {row}," for number, row in enumerate(rows)]
    yield from listed or [f"    {empty},"]
    yield "};"


def _program_struct(
    program: Program, tables: _Tables, number: int, weights_offset: int
) -> Iterator[str]:
    yield f"extern const rutc_program rutc_program_{number} {_HIDDEN};"
    yield f"const rutc_program rutc_program_{number} = {{"
    yield "    .features = features,"
    yield "    .ports = ports,"
    yield f"    .input_count = {len(program.inputs)},"
    yield f"    .output_count = {len(program.outputs)},"
    yield "    .buffers = buffers,"
    yield f"    .buffer_count = {len(tables.buffers)},"
    yield "    .patches = patches,"
    yield "    .steps = steps,"
    yield f"    .step_count = {len(tables.rows)},"
    yield "    .bound = bound,"
    yield "    .blocks = blocks,"
    yield f"    .block_count = {program.blocks},"
    yield "    .calls = calls,"
    yield f"    .call_count = {len(tables.calls)},"
    most = max((len(c.args) + len(c.results) for c in tables.calls), default=0)
    yield f"    .most_operands = {most},"
    keeper = "&rutc_keeper_of_all" if tables.calls or program.strings else "NULL"
    yield f"    .keeper = {keeper},"
    yield "    .symbols = symbols,"
    yield f"    .symbol_count = {len(program.symbols)},"
    yield "    .strings = strings,"
    yield f"    .string_count = {len(program.strings)},"
    yield f"    .keep_subnormals = {int(program.keep_subnormals)},"
    yield f"    .thread_bytes = {program.thread_bytes},"
    yield f"    .turn_bytes = {program.turn_bytes},"
    yield "    .turns = turns,"
    yield "    .nears = nears,"
    arena = tables.sizes.code(program.arena_bytes)
    yield f"    .arena_bytes = {arena},"
    yield f"    .size_count = {len(tables.sizes)},"
    yield "    .compute_sizes = compute_sizes,"
    yield "    .largest_bytes = largest_bytes,"
    yield "    .block_bytes = block_bytes,"
    yield "    .launch_symbols = launch_symbols,"
    yield f"    .weights_offset = {weights_offset},"
    yield f"    .weight_bytes = {program.weight_bytes},"
    yield "};"


def _entry_points(prefix: str) -> Iterator[str]:
    yield f"""\
#define EXPORT __attribute__((visibility("default")))

/* Lets a loader that knows only the file find the entry points. */
EXPORT extern const char rutc_artifact_prefix[];
EXPORT const char rutc_artifact_prefix[] = "{prefix}";

EXPORT int32_t {prefix}_abi_version(void) {{ return RUTC_ABI_VERSION; }}

EXPORT const char *{prefix}_manifest(void) {{ return {MANIFEST_SYMBOL}; }}

EXPORT rutc_session *{prefix}_open(const rutc_options *options) {{
  return rutc_session_open(&model, options);
}}

EXPORT int32_t {prefix}_output_shapes(rutc_session *session, const DLTensor *const *inputs,
                                      int32_t input_count, DLTensor *const *outputs,
                                      int32_t output_count) {{
  return rutc_session_output_shapes(session, &model, inputs, input_count, outputs, output_count);
}}

EXPORT int32_t {prefix}_run(rutc_session *session, const DLTensor *const *inputs,
                            int32_t input_count, DLTensor *const *outputs, int32_t output_count) {{
  return rutc_session_run(session, &model, inputs, input_count, outputs, output_count);
}}

EXPORT int32_t {prefix}_profile(rutc_session *session, rutc_profile_entry *entries,
                                int32_t capacity) {{
  return rutc_session_profile(session, entries, capacity);
}}

EXPORT const char *{prefix}_last_error(const rutc_session *session) {{
  return rutc_session_error(session, &model);
}}

EXPORT void {prefix}_close(rutc_session *session) {{ rutc_session_close(session); }}"""
