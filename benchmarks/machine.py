"""What a measurement was made on: the CPU, the versions and the commit."""

import datetime
import importlib.metadata
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rutc.doctor import cpu_name

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("onnxruntime", "openvino", "iree-base-compiler", "apache-tvm", "torch")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where, when and of what a measurement is."""

    cpu: str
    cpus: int
    date: str
    commit: str
    versions: dict[str, str]

    def line(self) -> str:
        """Returns it as one line of text."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.cpu}, {self.cpus} CPUs; rutc at commit {self.commit}; {versions}; {self.date}"
        )


def provenance() -> Provenance:
    """Returns the provenance of a measurement made now."""
    return Provenance(
        cpu=cpu_name(),
        cpus=len(os.sched_getaffinity(0)),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=_commit(),
        versions=_versions(),
    )


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")


def _versions() -> dict[str, str]:
    versions = {}
    for name in PEERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
