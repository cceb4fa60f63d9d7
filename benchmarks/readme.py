"""The README's table of speeds, made from the zoo's results of each machine."""

from collections.abc import Sequence
from statistics import geometric_mean

from benchmarks.layout import by_machine, machine_title
from benchmarks.machine import ROOT
from benchmarks.store import Entry
from benchmarks.zoo_page import FEW, ratios_to

README = ROOT / "README.md"
BEGIN, END = "<!-- speed: written by python -m benchmarks.zoo -->", "<!-- end of speed -->"
PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


def table(entries: Sequence[Entry]) -> str:
    """Returns how many times as fast as its peers rutc runs the zoo, in geometric mean."""
    columns = [(peer, threads) for peer in PEERS for threads in (1, 2)]
    titles = [f"{PEERS[peer]}, {n} thread{'s' if n > 1 else ''}" for peer, n in columns]
    lines = [f"| CPU | {' | '.join(titles)} | measured |", "|---|" + "---|" * (len(columns) + 1)]
    for own in by_machine(entries):
        cells = []
        for peer, threads in columns:
            ratios = ratios_to([e for e in own if e["threads"] == threads], peer)
            many = len(ratios) >= FEW
            cells.append(f"{1 / geometric_mean(ratios):.1f}x (n={len(ratios)})" if many else "")
        if not any(cells):
            continue
        how = {str(e["protocol"]) for e in own}
        when = max(str(e.get("date")) for e in own)
        said = f"{when}, {' and '.join(sorted(how))}"
        lines.append(f"| {machine_title(own[0])} | {' | '.join(cells)} | {said} |")
    return "\n".join(lines)


def with_table(text: str, entries: Sequence[Entry]) -> str:
    """Returns the README with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(entries)}\n{END}{after}"


def write(entries: Sequence[Entry]) -> None:
    """Writes the table into the README."""
    text = README.read_text(encoding="utf-8")
    README.write_text(with_table(text, entries), encoding="utf-8")
