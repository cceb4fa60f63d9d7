"""What pyproject.toml lists is what the folders hold, and importing rutc stays light."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rutc

ROOT = Path(__file__).resolve().parents[2]
NOT_PACKAGED = {"tests", "benchmarks", "docs", "tools", "build", "dist"}
DATA_SUFFIXES = {".c", ".css", ".h", ".html", ".js", ".json", ".npz", ".onnx", ".txt"}
HEAVY = (
    "onnx",
    "onnxruntime",
    "llvmlite",
    "torch",
    "scipy",
    "sqlalchemy",
    "rich",
    "typer",
    "jinja2",
)


def _settings() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        document = tomllib.load(file)
    settings = document["tool"]["setuptools"]
    assert isinstance(settings, dict)
    return settings


def _package_folders() -> list[Path]:
    folders = [ROOT]
    for init in sorted(ROOT.rglob("__init__.py")):
        parts = init.parent.relative_to(ROOT).parts
        if parts and parts[0] not in NOT_PACKAGED and not parts[0].startswith("."):
            folders.append(init.parent)
    return folders


def _name(folder: Path) -> str:
    return ".".join(("rutc", *folder.relative_to(ROOT).parts))


def test_every_package_folder_is_listed() -> None:
    assert _settings()["packages"] == sorted(_name(folder) for folder in _package_folders())


def test_every_data_file_is_packaged() -> None:
    patterns = _settings()["package-data"]
    assert isinstance(patterns, dict)
    packaged = {
        path
        for folder in _package_folders()
        for pattern in patterns.get(_name(folder), [])
        for path in folder.glob(pattern)
    }
    present = {
        path
        for folder in _package_folders()
        if folder != ROOT
        for path in folder.rglob("*")
        if path.suffix in DATA_SUFFIXES
    }
    assert sorted(present - packaged) == []


def _modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", HEAVY)
def test_import_rutc_is_light(module: str) -> None:
    assert module not in _modules_after("import rutc")


@pytest.mark.parametrize("name", [name for name in rutc.__all__ if name != "__version__"])
def test_every_lazy_name_exists(name: str) -> None:
    assert getattr(rutc, name).__name__ == name


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rutc.nonsense  # noqa: B018


def test_the_runtime_needs_numpy_only() -> None:
    loaded = _modules_after("import rutc.runtime")
    assert loaded.isdisjoint(HEAVY)
    # What is for errors and requests alone takes as long to import as several of its own modules.
    assert loaded.isdisjoint({"_hashlib", "difflib"})
    inside = {name for name in loaded if name.startswith("rutc.")}
    assert {name for name in inside if not name.startswith("rutc.runtime")} == set()
