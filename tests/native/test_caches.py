# SPDX-License-Identifier: Apache-2.0
"""From how many bytes on results go past the caches, by the kind of processor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorbackend.backends import caches, toolchain
from tensorbackend.kernel_files import kernel_path


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    caches.near_bytes.cache_clear()
    yield
    caches.near_bytes.cache_clear()


@pytest.mark.parametrize(
    ("maker", "size", "wanted"),
    [
        ("AuthenticAMD", "32768K\n", 24 << 20),
        ("AuthenticAMD", "4096K\n", caches.OWN_BYTES),
        ("AuthenticAMD", "no number", caches.OWN_BYTES),
        ("AuthenticAMD", None, caches.OWN_BYTES),
        ("GenuineIntel", "266240K\n", caches.OWN_BYTES),
    ],
)
def test_three_quarters_of_the_cache_of_a_complex_are_near(monkeypatch, tmp_path: Path, maker, size, wanted) -> None:
    monkeypatch.setattr(toolchain, "cpu_features", lambda: f"x86_64\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(caches, "SHARED", tmp_path / "size")
    if size is not None:
        (tmp_path / "size").write_text(size)
    assert caches.near_bytes() == wanted
    assert caches.go_past(wanted + 1) and not caches.go_past(wanted)


def test_results_that_are_half_of_the_bytes_may_be_more(monkeypatch) -> None:
    monkeypatch.setattr(caches, "near_bytes", lambda: 24)
    assert caches.go_past(25, 11) and caches.go_past(34, 16)
    assert not caches.go_past(32, 16) and not caches.go_past(32, 15) and not caches.go_past(24)


def test_the_ways_with_memory_are_those_of_the_kernels() -> None:
    text = kernel_path("c/kernel.h").read_text(encoding="utf-8")
    found = {name: int(bit) for name, bit in re.findall(r"#define TB_STREAM_(\w+) (\d+)", text)}
    assert found == {"AHEAD": caches.AHEAD, "PAST": caches.PAST, "NEXT": caches.NEXT}
