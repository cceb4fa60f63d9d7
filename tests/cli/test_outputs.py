"""Where results go: only regular files are replaced, nothing is half-written, nothing is left."""

import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rutc as package
from rutc.emit import cache
from rutc.emit.linking.toolchain import Toolchain
from rutc.errors import InternalError, UserError
from tests.cli.conftest import Outcome, Rutc

RUTC = Path(sys.executable).with_name("rutc")
LITTLE_BYTES = 20_000
"""Less than a library takes."""


def _link(path: Path) -> None:
    path.symlink_to("elsewhere")


def _link_to_file(path: Path) -> None:
    path.with_name("target").write_text("target")
    path.symlink_to("target")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def _device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only the super-user makes devices")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))


PLACED = [_link, _link_to_file, os.mkfifo, _socket, _device, os.mkdir]
"""What makes something that is no file, and that no output replaces."""


def _states(folder: Path) -> list[tuple[str, int, int]]:
    """All that lies in a folder: names, kinds and numbers."""
    found = [(p, p.lstat()) for p in sorted(folder.rglob("*"))]
    return [(str(path), status.st_mode, status.st_ino) for path, status in found]


def _refused(outcome: Outcome, words: str) -> None:

    assert outcome.status == 2, outcome.stderr
    assert outcome.stderr.count("error:") == 1
    assert words in outcome.stderr


@pytest.mark.parametrize("make", PLACED)
@pytest.mark.parametrize("name", ["net.so", "net.h", "net.weights"])
def test_compile_replaces_files_only(
    rutc: Rutc, tmp_path: Path, model: Path, make: Callable[[Path], None], name: str
) -> None:
    make(tmp_path / name)
    before = _states(tmp_path)
    _refused(rutc("compile", model, "-o", tmp_path / "net.so"), "only regular files are replaced")
    assert _states(tmp_path) == before


@pytest.mark.parametrize("make", PLACED)
def test_run_replaces_files_only(
    rutc: Rutc, tmp_path: Path, artifact: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "y.npz")
    before = _states(tmp_path)
    _refused(rutc("run", artifact, "-o", tmp_path / "y.npz"), "only regular files are replaced")
    assert _states(tmp_path) == before


@pytest.mark.parametrize("make", [_link, os.mkfifo, Path.touch])
def test_the_folder_of_what_differs_is_a_folder(
    rutc: Rutc, tmp_path: Path, model: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "net.unverified")
    before = _states(tmp_path)
    result = rutc("compile", model, "-o", tmp_path / "net.so")
    _refused(result, "cannot write the folder")
    assert _states(tmp_path) == before


@pytest.mark.parametrize("make", [_link, os.mkfifo, Path.touch])
def test_dumps_go_to_folders(
    rutc: Rutc, tmp_path: Path, model: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "dump")
    before = _states(tmp_path)
    _refused(
        rutc("compile", model, "-o", tmp_path / "net.so", "--dump", tmp_path / "dump"),
        "cannot write the folder",
    )
    assert _states(tmp_path) == before


@pytest.mark.parametrize("make", PLACED)
def test_dumps_replace_files_only(
    rutc: Rutc, tmp_path: Path, model: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "dump").mkdir()
    make(tmp_path / "dump" / "plan.txt")
    result = rutc("compile", model, "-o", tmp_path / "net.so", "--dump", tmp_path / "dump")
    _refused(result, "only regular files are replaced")
    assert not (tmp_path / "net.so").exists()


@pytest.mark.parametrize("name", ["a" * 300 + ".so", "small.onnx/net.so", "net.h", "net.weights"])
def test_names_that_cannot_be(rutc: Rutc, tmp_path: Path, model: Path, name: str) -> None:
    (tmp_path / "small.onnx").write_bytes(model.read_bytes())
    _refused(rutc("compile", tmp_path / "small.onnx", "-o", tmp_path / name), "cannot write")
    assert os.listdir(tmp_path) == ["small.onnx"]


def test_names_with_nul(tmp_path: Path, model: Path) -> None:
    for arguments in ({"output": f"{tmp_path}/a\0.so"}, {"dump": f"{tmp_path}/a\0"}):
        with pytest.raises(UserError, match=r"cannot write.*a\\x00.*null"):
            package.compile(model, **{"output": tmp_path / "a.so", **arguments})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


COUNTS = [0, -1, True, 2.0, "2"]


@pytest.mark.parametrize(
    ("name", "number"),
    [("threads", 2**70), *((name, n) for name in ("threads", "jobs") for n in COUNTS)],
)
def test_absurd_counts(tmp_path: Path, model: Path, name: str, number: object) -> None:
    with pytest.raises(UserError, match=f"{name} must be a whole number"):
        package.compile(model, tmp_path / "a.so", **{name: number})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def _environment(folder: Path, **more: str) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return {
        **os.environ,
        "RUTC_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        **more,
    }


def _limited() -> None:
    """Files larger than the limit cannot be written: EFBIG, in place of ENOSPC."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LITTLE_BYTES, LITTLE_BYTES))


@pytest.mark.parametrize("warm", [False, True])
def test_a_full_disk_is_told(tmp_path: Path, model: Path, warm: bool) -> None:
    """Warm: all is in the cache; else the C compiler finds the disk full."""
    environment = _environment(tmp_path)
    output = tmp_path / "out"
    output.mkdir()
    command = [RUTC, "compile", model, "-o", output / "net.so", "--no-verify"]
    if warm:
        subprocess.run(command, env=environment, check=True, capture_output=True)
    for suffix in (".so", ".h"):
        (output / f"net{suffix}").write_text("older")
    before = sorted((tmp_path / "cache").rglob("*"))
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, preexec_fn=_limited, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error:") == 1
    assert "File too large" in done.stderr or "File size limit" in done.stderr
    assert ".rutc-" not in done.stderr
    assert sorted(os.listdir(output)) == ["net.h", "net.so"]
    assert {p.read_text() for p in output.iterdir()} == {"older"}
    assert os.listdir(tmp_path / "tmp") == []
    if warm:
        assert sorted((tmp_path / "cache").rglob("*")) == before
    subprocess.run(command, env=environment, check=True, capture_output=True)
    with package.load(output / "net.so", threads=1) as session:
        session.run(None, {"x": np.zeros((4, 8), np.float32)})


def test_outputs_on_a_full_disk(tmp_path: Path, artifact: Path) -> None:
    (tmp_path / "y.npz").write_text("older")
    done = subprocess.run(
        [RUTC, "run", artifact, "-o", tmp_path / "y.npz"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: cannot write {tmp_path / 'y.npz'}: File too large"
    assert os.listdir(tmp_path) == ["y.npz"]
    assert (tmp_path / "y.npz").read_text() == "older"


def test_a_full_cache_is_no_failure(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write_atomically", full)
    monkeypatch.setattr("rutc.emit.archive.copied", full)
    result = rutc("compile", model, "-o", tmp_path / "net.so", "--no-verify")
    assert result.status == 0, result.stderr
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_nowhere_to_compile(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    result = rutc("compile", model, "-o", tmp_path / "net.so", "--no-verify")
    _refused(result, f"cannot write in {tmp_path / 'none'}")

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    result = rutc("compile", model, "-o", tmp_path / "net.so", "--no-verify")
    _refused(result, "set TMPDIR")


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("inspect {} > /dev/full", 2, "error: cannot write to stdout: No space left on device\n"),
        ("inspect {} --json > /dev/full", 2, "No space left"),
        ("inspect {} | exit 0", 141, ""),
        ("inspect {} --json | exit 0", 141, ""),
        ("compile --help | exit 0", 141, ""),
        ("--help | exit 0", 141, ""),
        ("--version | exit 0", 141, ""),
        ("compile --nonsense 2>&1 | exit 0", 2, ""),
        ("inspect none.so 2>&1 | exit 0", 2, ""),
        ("inspect {} >&-", 2, "error: cannot write to stdout: Bad file descriptor\n"),
        ("inspect {} --json >&-", 2, "cannot write to stdout"),
        ("inspect {} 2> /dev/full > /dev/full", 2, ""),
        ("inspect none.so 2> /dev/full", 2, ""),
        ("inspect none.so --json > /dev/full", 2, "none.so"),
        ("--help > /dev/full", 2, "error: cannot write to stdout: No space left on device\n"),
        ("--help >&-", 2, "error: cannot write to stdout: Bad file descriptor\n"),
        ("--version <&- >&- 2>&-", 2, ""),
        ("--version <&- 2>&-", 0, ""),
    ],
)
def test_streams_that_cannot_be_written(
    tmp_path: Path, artifact: Path, command: str, status: int, told: str
) -> None:
    words, bar, rest = command.format(artifact).partition("|")
    script = f"{RUTC} {words}"
    if bar:
        # What reads ends before anything is written.
        script = f"set -o pipefail; (sleep 0.3; {script}) |{rest}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert done.stderr.count("error:") <= 1
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert told in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_closed_streams_are_not_taken_by_files(tmp_path: Path, model: Path) -> None:
    """Else what a library prints would go into them. The library is there, its summary is not."""
    script = f"{RUTC} compile {model} -o net.so --no-verify >&- 2>&- <&-"
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, check=False).returncode == 2
    with package.load(tmp_path / "net.so", threads=1) as session:
        session.run(None, {"x": np.zeros((4, 8), np.float32)})


@pytest.mark.parametrize("full", [False, True])
def test_a_compiler_that_does_not_say_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if full:
        monkeypatch.setattr(os, "posix_fallocate", no_space)
    failing = Toolchain(("false",), "false")
    with pytest.raises(UserError if full else InternalError, match=r"cannot write|failed"):
        failing.run(["a.c"], tmp_path)


def test_a_bundle_is_all_that_a_server_needs(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "served"
    done = rutc("compile", model, "--bundle", folder)
    assert done.status == 0, done.stderr
    name = f"{model.stem}.so"
    assert sorted(os.listdir(folder)) == sorted([name, f"{model.stem}.h", "rutc_runtime.py"])
    assert (
        f'served: all that a server with Python and numpy needs: rutc_runtime.load("{name}")'
        in (done.stdout.replace("\n", ""))
    )
    moved = shutil.move(folder, tmp_path / "elsewhere")
    script = f"""
import sys, numpy as np, rutc_runtime
with rutc_runtime.load("{name}") as session:
    inputs = {{
        i.name: np.ones([n if isinstance(n, int) else 1 for n in i.shape], np.float32)
        for i in session.get_inputs()
    }}
    print(len(session.run(None, inputs)))
assert not any(m.partition(".")[0] in ("rutc", "onnx", "llvmlite") for m in sys.modules)
"""
    command = [sys.executable, "-c", script]
    served = subprocess.run(command, cwd=moved, capture_output=True, text=True, check=False)
    assert (served.returncode, served.stdout) == (0, "1\n"), served.stderr


def test_bundles_are_folders_with_the_library(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "served"
    done = rutc("compile", model, "--bundle", folder, "-o", tmp_path / "net.so")
    _refused(done, "is where the library goes: leave out -o")
    assert not folder.exists()
    assert rutc("compile", model, "--bundle", folder, "-o", folder / "net.so").status == 0
    assert {"net.so", "rutc_runtime.py"} <= set(os.listdir(folder))
    (tmp_path / "file").touch()
    _refused(rutc("compile", model, "--bundle", tmp_path / "file"), "cannot write the folder")


def test_errors_leave_no_empty_bundle(rutc: Rutc, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    folder = tmp_path / "served"
    assert rutc("compile", tmp_path / "bad.onnx", "--bundle", folder).status == 2
    assert not folder.exists()
    folder.mkdir()
    assert rutc("compile", tmp_path / "bad.onnx", "--bundle", folder).status == 2
    assert folder.exists()
