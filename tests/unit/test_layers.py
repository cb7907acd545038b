# SPDX-License-Identifier: Apache-2.0
"""Rules about the sources themselves, read with `ast`: direction of imports, docstrings, licence lines, no prints."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tensorbackend"
FOLDERS = ("tensorbackend", "kernels", "tests", "examples", "benchmarks", "docs", ".ci")
CODE = {".py", ".c", ".h", ".cpp", ".S", ".cu", ".cuh", ".sh"}
TEXT = CODE | {".md", ".toml", ".in", ".txt", ".json", ".cfg", ""}
MAY_PRINT = {"bench.py", "__main__.py"}

# Lowest first: a module imports from those before it. A folder counts as one; inside it every import is allowed.
LAYERS = (
    "errors arguments dtypes settings kernel_files numerics ops graph user_kernels codegen primitives explain_page "
    "explain backends stubgen contract_page function function_hooks functions initializers links optimizers "
    "serializers gradient_check iterators utils distributed __init__ api_page docgen testing bench_results bench "
    "bench_page conformance commands __main__"
).split()


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a source file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def modules() -> list[Path]:
    """The Python files of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def files(suffixes: set[str]) -> list[Path]:
    """The project's files of these kinds, at the top and in its folders; what tools leave behind is left out."""
    found = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in found if path.suffix in suffixes)


def place(path: Path, line: int) -> str:
    """A position as `tensorbackend/ops.py:12`."""
    return f"{path.relative_to(ROOT)}:{line}"


def report(offences: list[str]) -> None:
    """Fail with one line an offence."""
    if offences:
        pytest.fail("\n".join(offences), pytrace=False)


def is_type_checking(node: ast.AST) -> bool:
    """Whether a node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import statement that can run, also inside functions; not those for type checkers only."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node
    children = node.orelse if is_type_checking(node) else ast.iter_child_nodes(node)
    for child in children:
        if not isinstance(child, ast.expr):
            yield from imports(child)


def imported_names(path: Path, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The full dotted names that an import statement of a module asks for, `from` names included."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    package = path.relative_to(ROOT).parent.parts
    base = package[: len(package) - node.level + 1] if node.level else ()
    stem = ".".join([*base, *([node.module] if node.module else [])])
    yield from (f"{stem}.{alias.name}" for alias in node.names)


def layer_of(name: str) -> str | None:
    """The layer that a dotted name belongs to; `__init__` for the package's own names, None for other packages."""
    head, _, rest = name.partition(".")
    if head != "tensorbackend":
        return None
    first = rest.partition(".")[0]
    is_module = first in LAYERS or (PACKAGE / first / "__init__.py").is_file() or (PACKAGE / f"{first}.py").is_file()
    return first if is_module else "__init__"


def layer_of_file(path: Path) -> str:
    """The layer that a module of the package belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_layer() -> None:
    unplaced = {layer_of_file(path) for path in modules()} - set(LAYERS)
    report([f"{name}: not in LAYERS; put it below all that import it" for name in sorted(unplaced)])


def test_imports_go_down_the_layers_only() -> None:
    rank = {name: number for number, name in enumerate(LAYERS)}
    offences = []
    for path in modules():
        layer = layer_of_file(path)
        for node in imports(parse(path)):
            for name in imported_names(path, node):
                target = layer_of(name)
                if target not in (None, layer) and rank.get(target, -1) > rank.get(layer, len(rank)):
                    offences.append(f"{place(path, node.lineno)}: imports {name}; {target} is above {layer}")
    report(offences)


def test_the_map_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    whole = {"commands", "conformance", "functions", "links", "optimizers", "testing"}  # named as folders
    named = set(re.findall(r"(\w+\.py)\b", text))
    left = [p for p in modules() if layer_of_file(p) not in whole and p.name not in {*named, "__init__.py"}]
    report([f"{place(path, 1)}: docs/architecture.md does not say what it decides" for path in left])


def test_modules_have_a_docstring() -> None:
    report([place(path, 1) for path in modules() if parse(path).body and ast.get_docstring(parse(path)) is None])


def is_public(node: ast.AST) -> bool:
    """Whether a statement defines a public name. Tests say what they do in their names."""
    is_definition = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    return is_definition and not node.name.startswith(("_", "test_"))


def is_second_half(node: ast.AST) -> bool:
    """Whether a definition belongs to a documented one: a property's setter, an overload."""
    decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
    return any(text.endswith((".setter", ".deleter", "overload")) for text in decorators)


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Every class of the package by name."""
    nodes = (node for path in modules() for node in ast.walk(parse(path)))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def is_documented(name: str, owner: ast.ClassDef | None) -> bool:
    """Whether a method has a docstring in this class of the package or one that it inherits from."""
    if owner is None:
        return False
    if any(is_public(node) and node.name == name and ast.get_docstring(node) for node in owner.body):
        return True
    bases = (ast.unparse(base).rpartition(".")[2] for base in owner.bases)
    return any(is_documented(name, classes().get(base)) for base in bases)


def undocumented(body: list[ast.stmt], owner: ast.ClassDef | None = None) -> Iterator[ast.stmt]:
    """The public definitions without a docstring in a module's or class's body, and in its classes."""
    for node in filter(is_public, body):
        if ast.get_docstring(node) is None and not is_second_half(node) and not is_documented(node.name, owner):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node.body, node)


def test_public_names_have_a_docstring() -> None:
    report([f"{place(path, n.lineno)}: {n.name}" for path in modules() for n in undocumented(parse(path).body)])


def test_no_print_outside_the_command_line() -> None:
    offences = []
    for path in modules():
        if path.name in MAY_PRINT or "print" not in path.read_text(encoding="utf-8"):
            continue
        calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
        prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        offences += [f"{place(path, call.lineno)}: print; use logging or warnings" for call in prints]
    report(offences)


def test_sources_name_their_licence() -> None:
    sources = [*files(CODE), ROOT / "dev", ROOT / ".ci" / "run", ROOT / "pyproject.toml"]
    heads = {path: "\n".join(path.read_text(encoding="utf-8").splitlines()[:2]) for path in sources}
    report([place(path, 1) for path, head in heads.items() if "SPDX-License-Identifier: Apache-2.0" not in head])


def test_no_path_of_one_machine() -> None:
    own = [str(ROOT), str(Path.home()), *({sys.prefix, sys.base_prefix} - {"/usr"})]
    pattern = re.compile("|".join([*map(re.escape, own), r"(?<![\w.])/(?:home|Users|work)/\w+"]))
    offences = []
    for path in files(TEXT):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if found := pattern.search(line):
                offences.append(f"{place(path, number)}: {found.group()}")
    report(offences)
