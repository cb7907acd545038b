# SPDX-License-Identifier: Apache-2.0
"""Tests of how tests go to workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.dozens import Dozens

CONFTEST = """
import sys

sys.path.insert(0, {root!r})


def pytest_xdist_make_scheduler(config, log):
    from tests.dozens import Dozens

    return Dozens(config, log)
"""
TESTS = """
import os
import pytest


@pytest.mark.parametrize("i", range(40))
@pytest.mark.parametrize("group", [None, pytest.param("g@", marks=pytest.mark.xdist_group("alone"))])
def test_it(group, i, worker_id):
    if i == 17 and not group and os.environ.get("CRASH"):
        os._exit(3)
    assert i != 30 or group


@pytest.mark.xdist_group("single")
def test_by_itself():
    if os.environ.get("CRASH"):
        os._exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
def test_each_test_runs_once_and_one_that_ends_its_worker_is_named(tmp_path: Path, crash: bool) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(root=str(Path(__file__).parents[2])))
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "."]
    environment = {"PATH": "", "CRASH": "1"} if crash else {"PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    found = re.findall(r"^\[(gw\d)\] .* (PASSED|FAILED) (\S+)", done.stdout, re.MULTILINE)
    assert f"{1 + 2 * crash} failed, {80 - 2 * crash} passed" in done.stdout, done.stdout[-3000:]
    assert len({name for *_, name in found}) == len(found) == 81
    failed = {name for _, verdict, name in found if verdict == "FAILED"}
    ended = {"test_some.py::test_it[None-17]", "test_some.py::test_by_itself@single"} if crash else set()
    assert failed == {"test_some.py::test_it[None-30]"} | ended
    assert len({worker for worker, _, name in found if name.endswith("@alone")}) == 1
    assert "worker 'gw" in done.stdout if crash else len({worker for worker, *_ in found}) == 2


def test_a_worker_that_has_yet_to_collect_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(LoadGroupScheduling, "_reschedule", lambda self, node: given.append(node))
    work = Dozens.__new__(Dozens)
    work.registered_collections = {"early": ["test"]}
    for node in ("early", "late"):
        work._reschedule(node)
    assert given == ["early"]
