"""What a measurement was made on, and how: the CPU, the versions, the commit, the protocol."""

import datetime
import importlib.metadata
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rutc.base.processor import cpu_flags, cpu_name
from rutc.emit.targets.select import host_features, host_processor

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("onnxruntime", "openvino", "iree-base-compiler", "apache-tvm", "torch")
PROTOCOL = "processes in turns"
"""How entries are measured (`benchmarks.protocol`)."""
FEATURES = ("avx2", "avxvnni", "avx512f", "avx512vnni", "avx512bf16", "amx-bf16", "amx-int8")
"""What tells processors apart whose code differs."""
UNMEASURED = ("benchmarks/results", "docs", "README.md", "tests")
"""What measurements write, and what they do not run."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where, when and of what a measurement is."""

    cpu: str
    processor: str
    features: list[str]
    cpus: int
    date: str
    commit: str
    versions: dict[str, str]
    protocol: str = PROTOCOL
    realtime: bool = False
    """Whether other processes waited while it was made, though the processor had others to run."""


def provenance() -> Provenance:
    """Returns the provenance of a measurement made now."""
    return Provenance(
        cpu=_cpu(),
        processor=host_processor(),
        features=[name for name in FEATURES if name in host_features()],
        cpus=len(os.sched_getaffinity(0)),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=_commit(),
        versions=_versions(),
        realtime=os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
    )


def _cpu() -> str:
    """The processor's name, and whether AVX-512 is kept from software (`tests.masked`)."""
    masked = "avx512f" in cpu_flags() and "avx512f" not in host_features()
    return cpu_name() + (", AVX-512 masked" if masked else "")


def _commit() -> str:
    """The last commit that changed what is measured, and whether more of that is changed.

    So entries of one campaign name one commit, though the first of them changes the tree.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments, "--", ".", *(f":!{place}" for place in UNMEASURED)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    commit = git("log", "-1", "--format=%h") or "unknown"
    return commit + (" with changes" if changed else "")


def _versions() -> dict[str, str]:
    versions = {}
    for name in PEERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
