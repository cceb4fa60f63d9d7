"""What pages have in common: a section for each machine, and what its rows were measured on."""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.store import Entry, case_of, machine

Table = Callable[[Sequence[Entry]], list[str]]

LINES = (
    "Later rows of two threads have the time that a cache line took from one CPU to the other: in",
    "virtual machines both may share a third cache now, and none an hour later.",
)
METHOD = (
    "Every peer has a process of its own and is stopped while another one's turn lasts; inputs",
    "and outputs are bound before, for all of them or (`unbound`) for none.",
)
VECTORS = (("amx", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2 only"))


def page(
    title: str,
    said: Sequence[str],
    entries: Sequence[Entry],
    table: Table,
    method: Sequence[str] = METHOD,
) -> str:
    """Returns a Markdown page with a section for each machine."""
    lines = [f"# {title}", "", *said, *method, ""]
    for own in by_machine(entries):
        lines += [
            f"## {machine_title(own[0])}",
            "",
            *table(own),
            "",
            *measured_on(own, timed=bool(method)),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def table(
    titles: str,
    entries: Sequence[Entry],
    cells: Callable[[Entry], Sequence[object]],
    name: Callable[[Entry], str] = case_of,
) -> list[str]:
    """Returns the lines of a table: its titles, and of each entry `cells` and its origin.

    One that failed has its error behind its name.
    """
    columns = titles.count("|") + 1
    lines = [f"| {titles} |", "|" + "---|" * columns]
    for entry in entries:
        failed = (name(entry), entry.get("error"), *[""] * (columns - 3))
        row = [*(failed if "error" in entry else cells(entry)), origin(entry)]
        lines.append(f"| {' | '.join(map(str, row))} |")
    return lines


def marked(entry: Entry) -> str:
    """Returns the case of an entry with what is said beside it."""
    return case_of(entry) + marks(entry)


def beside(entry: Entry) -> list[object]:
    """Returns the cells of a case in turns with ONNX Runtime: its name, both times, their ratio."""
    ratio = entry.get("ratio", "-")
    return [marked(entry), entry["rutc_us"], entry.get("onnxruntime_us", "-"), ratio]


def by_machine(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Returns the entries of each machine, that with the most first."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(machine(entry), []).append(entry)
    return sorted(groups.values(), key=_rank, reverse=True)


def _rank(entries: Sequence[Entry]) -> tuple[int, bool, str]:
    """Of as many entries, those of this protocol and then the latest are more."""
    dates = max(str(entry.get("date")) for entry in entries)
    return len(entries), any("protocol" in entry for entry in entries), dates


def machine_title(entry: Entry) -> str:
    """Returns a CPU, what LLVM calls it, and its widest vectors."""
    processor = f" ({entry['processor']})" if "processor" in entry else ""
    return f"{entry.get('cpu', 'unknown')}{processor}, {vectors(entry)}"


def vectors(entry: Entry) -> str:
    """Returns the family of the widest vectors or matrices that a machine has."""
    features = entry.get("features")
    if not isinstance(features, list):
        return "features not recorded"
    known = (name for start, name in VECTORS if any(f.startswith(start) for f in features))
    return next(known, "64-bit Arm or other")


def measured_on(entries: Sequence[Entry], *, timed: bool) -> list[str]:
    """Returns what the rows of a machine were measured on: a line for each commit and day."""
    lines = []
    for entry in entries:
        if "commit" not in entry:
            continue
        versions = entry.get("versions")
        assert isinstance(versions, dict)
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        line = f"- rutc at commit {entry['commit']}; {entry['cpus']} CPUs; {named}; {entry['date']}"
        protocol = f"; {entry['protocol']}" if timed else ""
        beside = "; in real-time priority beside other work" if entry.get("realtime") else ""
        lines.append(f"{line}{protocol}{beside}.")
    return list(dict.fromkeys(lines))


def runs(entry: Entry) -> list[int]:
    """Returns how often each peer ran."""
    counted = entry.get("runs")
    if isinstance(counted, Mapping):
        return [int(n) for n in counted.values()]
    times = entry.get("times")
    if isinstance(times, Mapping):
        return [int(t["runs"]) for t in times.values() if isinstance(t, Mapping)]
    return []


def origin(entry: Entry) -> str:
    """Returns the commit that a row was measured at, and how often its peers ran there.

    That of several threads has what a line took from one CPU to another.
    """
    counts, commit = runs(entry), str(entry.get("commit", ""))
    if not counts:
        return commit
    lines = entry.get("line_ns")
    far = f"; {_span(lines)} ns a line" if isinstance(lines, list) else ""
    return f"{commit}: {_span(counts)}{far}"


def _span(numbers: Sequence[int]) -> str:
    few, many = min(numbers), max(numbers)
    return f"{few}" + (f" to {many}" if many > few else "")


def marks(entry: Entry) -> str:
    """Returns what a row says beside its name where it is not as most are."""
    said = [] if entry.get("agrees", True) else ["does NOT agree"]
    if entry.get("parts"):
        said.append("bf16 matrix registers")
    if entry.get("bound") is False:
        said.append("unbound")
    if "exact_ratio" in entry:
        said.append(f"{entry['exact_ratio']} of its exact mode")
    return f" ({', '.join(said)})" if said else ""
