# SPDX-License-Identifier: Apache-2.0
"""The distribution: what a wheel holds, and that the kernel sources are found however the package is installed.

Nothing is downloaded. The wheel is built from the source distribution by the build tools at hand, and the fresh virtual
environments see NumPy through a path file.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import tensorbackend

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("packaging")]  # one worker builds the wheel, once

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCES = {".git", ".venv", ".hypothesis", ".pytest_cache", ".ruff_cache", "__pycache__", "build", "dist", "out"}
WHERE = "from tensorbackend.kernel_files import kernel_dir; print(kernel_dir())"


def kernel_names(folder: Path) -> set[str]:
    """The names of the files under a folder of kernel sources, relative to it."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


def run(*command: str | Path, cwd: Path, pythonpath: Path | None = None) -> str:
    """Run a command away from the checkout and return what it printed; its error output is shown if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if pythonpath is not None:
        env["PYTHONPATH"] = str(pythonpath)
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that building leaves nothing behind in the checkout."""
    copy = tmp_path_factory.mktemp("packaging") / "checkout"
    return shutil.copytree(ROOT, copy, ignore=lambda _, names: {n for n in names if n in NOT_SOURCES})


@pytest.fixture(scope="module")
def dist(checkout: Path, absent: Callable[[str, str], None]) -> Path:
    """The folder with a source distribution and the wheel built from it."""
    for module in ("build", "setuptools", "pip"):
        if importlib.util.find_spec(module) is None:
            absent("packaging", f"the Python module {module!r} is not installed (pip install {module})")
    folder = checkout.parent / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout, cwd=checkout.parent)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The wheel."""
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The wheel's METADATA, parsed."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """The interpreter of a fresh virtual environment that sees this one's packages, but not its editable installs."""
    folder = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=tmp_path)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path))
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")  # path files do not nest
    return python


def pip_install(venv: Path, *arguments: str | Path) -> None:
    """Install into the virtual environment with this environment's pip, without an index."""
    pip = (sys.executable, "-m", "pip", "--python", venv, "install", "--no-index", "--no-deps", "--ignore-installed")
    run(*pip, *arguments, cwd=venv.parent)


def test_wheel_holds_the_package_and_every_kernel_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    package = ROOT / "tensorbackend"
    sources = [*package.rglob("*.py"), *package.rglob("*.pyi")]
    modules = {f"tensorbackend/{path.relative_to(package).as_posix()}" for path in sources}
    kernels = {f"tensorbackend/kernels/{name}" for name in kernel_names(ROOT / "kernels")}
    assert names == modules | kernels | {"tensorbackend/py.typed"}


def test_metadata_says_name_version_licence_and_what_is_needed(metadata: Message) -> None:
    assert metadata["Name"] == "tensorbackend"
    assert metadata["Version"] == tensorbackend.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.10"
    required = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert [r.split(">=")[0] for r in required] == ["numpy", "ml_dtypes"]
    extras = set(metadata.get_all("Provides-Extra"))
    assert extras == {"clang", "cuda", "cuda-check", "pycuda", "bench", "mpi", "examples", "safetensors", "dev"}


def test_source_distribution_holds_what_the_tests_need(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    assert tests | {"LICENSE", "README.md", "CHANGELOG.md", "dev", "setup.py", "pyproject.toml"} <= names


def test_kernels_are_found_from_a_wheel(wheel: Path, venv: Path) -> None:
    pip_install(venv, wheel)
    found = Path(run(venv, "-c", WHERE, cwd=venv.parent))
    assert found.is_relative_to(venv.parents[1])
    assert found.parts[-2:] == ("tensorbackend", "kernels")
    assert kernel_names(found) == kernel_names(ROOT / "kernels")


def test_kernels_are_found_from_an_editable_install(dist: Path, checkout: Path, venv: Path) -> None:
    pip_install(venv, "--no-build-isolation", "--editable", checkout)
    assert Path(run(venv, "-c", WHERE, cwd=venv.parent)) == checkout / "kernels"


def test_kernels_are_found_from_a_bare_checkout(checkout: Path, venv: Path) -> None:
    assert Path(run(venv, "-c", WHERE, cwd=venv.parent, pythonpath=checkout)) == checkout / "kernels"
