# SPDX-License-Identifier: Apache-2.0
"""The convolutional digits example: its accuracy, on the CPU and on the emulated GPU, and captured."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.examples.conftest import accuracy_of, same_numbers

PNG = b"\x89PNG\r\n\x1a\n"
SHORT = ("--epochs", "3", "--maps", "8", "--seed", "1")


@pytest.mark.ci
def test_defaults_reach_98_5_per_cent(train: Callable) -> None:
    output, curves = train(script_name="cnn_digits.py")
    assert accuracy_of(output) >= 98.5
    assert curves.startswith(PNG)


@pytest.mark.ci
def test_a_captured_run_has_the_same_numbers(train: Callable) -> None:
    runs = [train(*SHORT, *extra, script_name="cnn_digits.py")[0] for extra in ((), ("--capture",))]
    lines = [re.findall(r"^(?:training|validation|test) +\d\.\d+ .*$", output, re.MULTILINE) for output in runs]
    assert len(lines[0]) == 3
    assert lines[0] == lines[1]


@pytest.mark.ci
def test_the_emulated_gpu_learns_as_the_cpu(train: Callable) -> None:
    options = ("--epochs", "1", "--maps", "8", "--seed", "1", "--dtype", "float64")
    same_numbers(*(train(*options, "-b", name, script_name="cnn_digits.py")[0] for name in ("cpu", "gpu:emulator")))
