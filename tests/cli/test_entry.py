"""The command's entry: what is set before anything is imported."""

import subprocess
import sys

import pytest

ENTERED = """
import os, sys
import rutc.__main__ as entry
assert "numpy" not in sys.modules
sys.argv[1:] = ["--version"]
try:
    entry.main()
except SystemExit as ended:
    assert not ended.code
print(os.environ["OPENBLAS_THREAD_TIMEOUT"])
"""


@pytest.mark.parametrize("given", [None, "20"])
def test_threads_are_told_to_sleep_before_numpy_is_imported(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "OPENBLAS_THREAD_TIMEOUT"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    done = subprocess.run(
        [sys.executable, "-c", ENTERED], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == (given or "4")
