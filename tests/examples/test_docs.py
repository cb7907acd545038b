# SPDX-License-Identifier: Apache-2.0
"""The documents: their programs run and print what they say, links lead somewhere, generated pages are current."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorbackend import Backend, docgen, stubgen
from tensorbackend.graph.optree import Operators

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
PRINTS = re.compile(r"^ *print\(.*\) +# (.*)$", re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(program: str, checkout: Path, folder: Path | None = None) -> str:
    """What a program prints that runs with the package of a checkout, in a folder (None: the checkout's)."""
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    env.pop("TB_TEST_SOURCES", None)  # what a changed checkout compiles is no source of this one
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder or checkout, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{program}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package and its kernel sources."""
    return copy_into(tmp_path)


def copy_into(tmp_path: Path) -> Path:
    """A folder with a copy of the package and its kernel sources in it."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("tensorbackend", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda page: page.stem)
def test_programs_print_what_they_say(page: Path, tmp_path: Path) -> None:
    """A page's Python blocks are one program. Diffs that it shows are applied to a copy of the sources first."""
    diffs = blocks(page, "diff")
    checkout = copy_into(tmp_path) if diffs else ROOT
    for diff in diffs:
        subprocess.run(["git", "apply", "-"], cwd=checkout, input=diff, text=True, check=True)
    program = "\n".join(blocks(page, "python"))
    assert run(program, checkout, tmp_path).splitlines() == PRINTS.findall(program)


@pytest.mark.slow
def test_an_added_op_passes_the_tests_of_the_table(checkout: Path) -> None:
    shutil.copytree(ROOT / "tests", checkout / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, checkout)
    (diff,) = blocks(ROOT / "docs" / "adding-an-op.md", "diff")
    subprocess.run(["git", "apply", "-"], cwd=checkout, input=diff, text=True, check=True)
    name = re.search(r'^\+_define\("(\w+)"', diff, re.MULTILINE)[1]
    arguments = ["-q", "-k", name, "tensorbackend/conformance"]
    printed = run(f"import pytest; raise SystemExit(pytest.main({arguments!r}))", checkout)
    assert int(re.search(r"(\d+) passed", printed)[1]) >= 5


@each_page
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if link[1] not in headings(page.parent / link[0] if link[0] else page)]


@each_page
def test_files_that_are_named_exist(page: Path) -> None:
    names = re.findall(r"`((?:tensorbackend|kernels|examples|tests|docs)/[\w./-]+)`", page.read_text(encoding="utf-8"))
    assert not [name for name in names if not (ROOT / name).exists()]


@each_page
def test_tests_that_are_named_exist(page: Path) -> None:
    names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    assert not [name for path, name in names if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")]


@each_page
def test_blocks_are_of_a_kind_that_is_tested_or_only_shown(page: Path) -> None:
    """python blocks run, sh blocks are checked, diffs applied; what programs print and excerpts are shown."""
    kinds = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert set(kinds) <= {"python", "sh", "diff", "c", "toml", "text", ""}


@each_page
def test_blocks_begin_with_what_they_show(page: Path) -> None:
    """None has lost its first lines."""
    assert not re.findall(r"^```\w+\n\s*\n", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_new_op_example_runs() -> None:
    printed = run((ROOT / "examples" / "new_op.py").read_text(encoding="utf-8"), ROOT)
    assert "smoothstep(x) * 2 [0.     0.     0.3125 1.     1.6875 2.     2.    ]" in printed
    assert "gradient   [0.   0.   2.25 3.   2.25 0.   0.  ]" in printed


# What is generated


@pytest.mark.parametrize("path", [p for p in docgen.generated() if p.suffix == ".md"], ids=lambda path: path.stem)
def test_generated_pages_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == docgen.generated()[path], "run ./dev docs"


@pytest.mark.parametrize("path", list(stubgen.stubs()), ids=lambda path: path.stem)
def test_stubs_are_current(path: Path) -> None:
    current = ast.dump(ast.parse(path.read_text(encoding="utf-8")))  # Python versions print code differently
    assert current == ast.dump(ast.parse(stubgen.stubs()[path])), "run ./dev docs"


def stub_methods(module: str, name: str) -> dict[str, ast.FunctionDef]:
    """The methods of a class of a stub file."""
    tree = ast.parse((ROOT / "tensorbackend" / module).read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def test_stub_of_backend_shows_every_method_as_it_is() -> None:
    shown = stub_methods("backends/base.pyi", "Backend")
    for name, method in vars(Backend).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        assert name in shown
        takes = shown[name].args
        names = [a.arg for a in [*takes.posonlyargs, *takes.args, *takes.kwonlyargs]]
        parameters = inspect.signature(method).parameters.values()
        wanted = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        assert names == [p.name for p in wanted], name
        optional = [p for p in wanted if p.default is not p.empty and p.kind != p.KEYWORD_ONLY]
        assert len(takes.defaults) == len(optional), name


def test_stub_of_operators_shows_every_operator() -> None:
    members = vars(Operators).items()
    defined = {name for name, x in members if inspect.isfunction(x) or isinstance(x, property)}
    assert defined == set(stub_methods("graph/optree.pyi", "Operators"))


def test_every_method_of_the_stub_that_the_table_makes_has_a_doc() -> None:
    shown = stub_methods("backends/base.pyi", "Backend")
    assert ast.get_docstring(shown["exp"])
    assert ast.get_docstring(shown["sum"])
    assert ast.get_docstring(shown["softmax"])


def test_the_page_of_names_tells_what_dictionaries_hold() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert "| `SETTINGS` | By name: backend, jit, " in page
    assert "dict() ->" not in page


def test_help_of_the_docs_writes_nothing() -> None:
    before = {path: path.stat().st_mtime_ns for path in docgen.generated()}
    done = subprocess.run([sys.executable, "-m", "tensorbackend.docgen", "--help"], capture_output=True, text=True,
                          cwd=docgen.ROOT)  # fmt: skip
    assert "docs/ops.md" in done.stdout and before == {path: path.stat().st_mtime_ns for path in before}
