"""Schedules timed by the workers of a cluster.

The cases run in a process of their own: a client of a cluster leaves threads behind, and other
tests copy their process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).parents[1] / "cluster_cases.py"


def test_cases_of_clusters() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CASES.parent.parent)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "7 passed" in done.stdout
