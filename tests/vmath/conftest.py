# SPDX-License-Identifier: Apache-2.0
"""The compiler, and kernels.c and references.c compiled once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tensorbackend.backends import toolchain
from tests.vmath import build


def pytest_itemcollected(item: pytest.Item) -> None:
    """One worker compiles the headers in all their builds, once."""
    item.add_marker(pytest.mark.xdist_group("vmath"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where shared objects go."""
    return tmp_path_factory.mktemp("vmath")


@pytest.fixture(scope="session")
def compiler(absent: Callable[[str, str], None]) -> toolchain.Compiler:
    """The C compiler that the engine would use."""
    found = toolchain.find_compiler()
    if found is None:
        absent("cc", toolchain.compiler_status())
    return found


@pytest.fixture(scope="session")
def kernels(folder: Path, compiler: toolchain.Compiler) -> build.Kernels:
    """kernels.c as generated kernels are compiled."""
    return build.build_kernels(folder / "kernels.so", compiler)


@pytest.fixture(scope="session")
def references(folder: Path, compiler: toolchain.Compiler) -> build.References:
    """references.c."""
    return build.build_references(folder / "references.so", compiler)
