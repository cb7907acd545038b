# SPDX-License-Identifier: Apache-2.0
"""Tests that compile run twice: a group of them through NumPy, which shows their kernels, then each in earnest.

Kernels compiled together take a third of the time. A module takes part that marks its tests `rehearsed`; what a
rehearsal finds is not reported, and a kernel that it did not meet is compiled when a test needs it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from unittest import mock

import pytest
from _pytest.assertion import util
from _pytest.runner import runtestprotocol
from hypothesis import settings

from tensorbackend.errors import CompileError
from tensorbackend.testing.rehearsal import Rehearsal

__all__ = ["GROUP", "pytest_configure", "pytest_itemcollected", "pytest_runtest_protocol"]

GROUP = 40
"""Tests of a module that are rehearsed together."""
KINDS = ("jit", "emulator", "gpu:emulator")
"""Backends, by the name that a test has as a parameter, whose kernels are compiled."""

_counts = pytest.StashKey[Counter]()
_rehearsed = pytest.StashKey[set]()


def pytest_configure(config: pytest.Config) -> None:
    """The marks, and what is remembered."""
    config.addinivalue_line("markers", "slow: a second or more for a special case; not for every day, compiled lightly")
    config.addinivalue_line("markers", "rehearsed: a test whose kernels are compiled together with its neighbours'")
    config.stash[_counts] = Counter()
    config.stash[_rehearsed] = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Those that are rehearsed together are for one worker."""
    kind = _kind(item)
    if kind is None or item.get_closest_marker("rehearsed") is None or item.get_closest_marker("xdist_group"):
        return
    place = item.config.stash[_counts][item.path, kind]
    item.config.stash[_counts][item.path, kind] += 1
    item.add_marker(pytest.mark.xdist_group(f"rehearsed, {item.path.name}, {kind}, {place // GROUP}"))


def _kind(item: pytest.Item) -> str | None:
    """The backend that a test runs on, if its kernels are compiled."""
    parameters = getattr(item, "callspec", None) and item.callspec.params or {}
    found = parameters.get("backend") or parameters.get("be")
    return found if found in KINDS else None


def _group(item: pytest.Item) -> str | None:
    """The group that a test is rehearsed with."""
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark and mark.args and mark.args[0].startswith("rehearsed, ") else None


def _repeats(item: pytest.Item) -> bool:
    """Whether a test does the same twice: properties do not, unless their examples are fixed."""
    return settings.default.derandomize or not getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Rehearse the group of a test when its first one is about to run."""
    group, done = _group(item), item.config.stash[_rehearsed]
    if group is None or group in done or item.config.getoption("usepdb"):
        return
    done.add(group)
    beside = [other for other in item.session.items if other is not item and _group(other) == group]
    _rehearse([other for other in (item, *beside) if _repeats(other)], item)


def _rehearse(items: list[pytest.Item], before: pytest.Item) -> None:
    """Run tests through NumPy, then compile what they need. They are set up and taken down again. Nobody asks why one
    fails: to spell out how much memory differs takes minutes."""
    rehearsal = Rehearsal()
    with rehearsal.noting(), mock.patch.object(util, "_reprcompare", None):
        for item, following in zip(items, [*items[1:], before]):
            if item is not following:
                runtestprotocol(item, log=False, nextitem=following)
                item._report_sections.clear()
    try:
        rehearsal.compile()
    except CompileError as error:
        warnings.warn(f"the rehearsal of {before.nodeid} and its neighbours: {error}", stacklevel=1)
