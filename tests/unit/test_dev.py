# SPDX-License-Identifier: Apache-2.0
"""`./dev`: its help, what it says when something is missing, and the environment that it makes on a bare machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELL_TOOLS = ("sh", "dirname", "cat", "cksum", "tail", "rm", "flock")
SHOW_PLACE = ("python", "-c", "import tensorbackend; print(tensorbackend.__file__)")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that `./dev` installs."""
    folder = tmp_path / "check out"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("tensorbackend", "kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("dev", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH that holds a shell's tools and no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in SHELL_TOOLS:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def broken_modules(folder: Path, *names: str) -> Path:
    """A folder for PYTHONPATH in which these modules say that they are missing."""
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(f"raise SystemExit('No module named {name}')\n")
    return folder


def dev(folder: Path, *arguments: str, **variables: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `./dev` with these environment variables on top of the present ones."""
    env = {**os.environ, "PYTHON": sys.executable, **{name: str(value) for name, value in variables.items()}}
    return subprocess.run([folder / "dev", *arguments], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)], ids=str)
def test_help_names_every_verb(arguments: tuple[str, ...]) -> None:
    done = dev(ROOT, *arguments)
    assert done.returncode == 0
    for verb in ("train", "test", "long", "bench", "docs", "lint", "python"):
        assert f"\n  {verb} " in done.stdout


def test_unknown_verb_fails_and_shows_the_help() -> None:
    done = dev(ROOT, "tset")
    assert done.returncode == 1
    assert "usage: ./dev VERB" in done.stderr
    assert "unknown verb: tset" in done.stderr


@pytest.mark.parametrize("script", [None, "#!/bin/sh\necho Python 3.9.2\nexit 1\n"], ids=["absent", "too old"])
def test_without_a_recent_python_it_says_what_to_install(checkout: Path, tmp_path: Path, script: str | None) -> None:
    python = tmp_path / "python3"
    if script is not None:
        python.write_text(script)
        python.chmod(0o755)
    done = dev(checkout, "test", PYTHON=python)
    assert done.returncode == 1
    assert "Python 3.10 or newer is needed" in done.stderr
    assert "apt-get install python3" in done.stderr
    assert script is None or "Python 3.9.2" in done.stderr


def test_without_any_pip_it_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    missing = broken_modules(tmp_path / "missing", "ensurepip", "pip", "virtualenv")
    done = dev(checkout, "test", PYTHONPATH=missing)
    assert done.returncode == 1
    assert "No module named pip" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


@pytest.mark.ci
def test_a_machine_without_ensurepip_and_compiler_gets_its_environment(
    checkout: Path, tools: Path, tmp_path: Path
) -> None:
    bare = {"PATH": tools, "PYTHONPATH": broken_modules(tmp_path / "missing", "ensurepip"), "CC": "cc", "TB_CC": ""}
    first = dev(checkout, *SHOW_PLACE, **bare)
    assert first.stdout.strip() == str(checkout / "tensorbackend" / "__init__.py"), first.stderr
    assert "making .venv" in first.stderr
    assert "installing tensorbackend" in first.stderr
    assert "apt-get install gcc libc6-dev" in first.stderr

    again = dev(checkout, *SHOW_PLACE, **bare)
    assert (again.stdout, again.stderr) == (first.stdout, "")

    with (checkout / "setup.py").open("a") as setup:
        setup.write("# changed\n")
    changed = dev(checkout, *SHOW_PLACE, **bare)
    assert "making .venv" not in changed.stderr
    assert "installing tensorbackend" in changed.stderr
