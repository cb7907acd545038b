# SPDX-License-Identifier: Apache-2.0
"""Commands that the documents show, in blocks and in lines: the scripts, verbs, modules, extras and options exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from tensorbackend import __main__ as command_line
from tensorbackend.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name / "README.md" for name in (".", "benchmarks", "kernels"))]
STARTS = r"(?:[A-Z_]+=\S+ +)*(?:python|\./dev|pip|gdb|make)\b"
VARIABLES = {setting.variable for setting in SETTINGS.values()} | {"TB_TEST_REQUIRE", "TB_TEST_PROFILE", "PYTHON"}
PLACEHOLDERS = {"train.py": "examples/mlp_digits.py", "script.py": "examples/mlp_digits.py", "program.py": "dev"}
"""Files of the reader's, and files that stand for them."""
PACKAGES = {"nvidia-nccl-cu13", "cupy-cuda13x", "matplotlib", "gcc"}
"""What `pip install` names beside this project."""


def commands(page: Path) -> list[str]:
    """The command lines of a page: of its `sh` blocks, indented lines, and code in a line of text."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    lines += re.findall(rf"^    ({STARTS} .*?)(?:  .*)?$", text, re.MULTILINE)
    lines += re.findall(rf"`({STARTS} [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [re.sub(r"\s+", " ", line) for line in lines]


CASES = [(page, line) for page in PAGES for line in commands(page)]


def file_of(name: str) -> Path:
    """A file that a command names, which must exist."""
    path = ROOT / PLACEHOLDERS.get(name, name)
    assert path.is_file(), f"no file {name}"
    return path


def check_options(words: list[str], *sources: Path) -> None:
    """Each option is one that a source mentions."""
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    unknown = [word for word in words if word.startswith("--") and f'"{word.partition("=")[0]}"' not in text]
    assert not unknown


def check_python(words: list[str]) -> None:
    """`python -m MODULE ...`, or a script of the checkout with options that it has."""
    if words[0] != "-m":
        script = file_of(words[0])
        check_options(words[1:], script, ROOT / "tensorbackend" / "bench.py")
    elif words[1] == "tensorbackend":
        options = command_line._parse(command_line.parser(), words[2:])
        if options.command == "launch":
            file_of(options.script)
    else:
        assert importlib.util.find_spec(words[1]) is not None


def check_install(words: list[str]) -> None:
    """`pip install` of this project, with extras that it has."""
    section = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    extras = re.findall(r"^([\w-]+) = \[", section.partition("\n[")[0], re.MULTILINE)
    assert words[0] == "install"
    for word in words[1:]:
        found = re.fullmatch(r"(?:tensorbackend|\.)\[([\w,-]+)\]", word)
        assert word in PACKAGES or word == "-e" or found and set(found[1].split(",")) <= set(extras), word


def check_dev(words: list[str]) -> None:
    """A verb of ./dev; `python` goes on as Python does."""
    verbs = re.findall(r"^  (\w+) {2,}", (ROOT / "dev").read_text(encoding="utf-8"), re.MULTILINE)
    assert words[0] in [*verbs, "--help"]
    if words[0] == "python":
        check_python(words[1:])


@pytest.mark.parametrize(("page", "line"), CASES, ids=[f"{page.stem}: {line}" for page, line in CASES])
def test_command_is_one_that_there_is(page: Path, line: str) -> None:
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        assert words.pop(0).partition("=")[0] in VARIABLES
    checks = {"python": check_python, "./dev": check_dev, "pip": check_install}
    if words[0] == "gdb":
        words = words[words.index("--args") + 1 :]
    checks[words[0]](words[1:])


def test_commands_are_found() -> None:
    assert len(CASES) >= 40
