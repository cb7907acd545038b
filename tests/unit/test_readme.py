# SPDX-License-Identifier: Apache-2.0
"""The README: its example runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
LINKS = re.findall(r"\]\((?!https?:)([^)#]+)", README)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_example_runs(example: str) -> None:
    done = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("link", LINKS)
def test_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).exists()


def test_readme_shows_an_example_and_the_two_commands() -> None:
    assert EXAMPLES
    assert "./dev train" in README
    assert "./dev test" in README
