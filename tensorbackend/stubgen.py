# SPDX-License-Identifier: Apache-2.0
"""Type stubs for the classes whose methods are made from the op table, so that editors and type checkers see them.

A stub shadows its whole module: it repeats the signatures of the source without bodies and docstrings (editors show
those of the source), declares the attributes that methods set, and adds the table's methods with their docs.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from tensorbackend import ops
from tensorbackend.backends import base
from tensorbackend.graph import composite, optree

__all__ = ["stubs"]

HEAD = '''# SPDX-License-Identifier: Apache-2.0
# ruff: noqa
"""Written by `./dev docs` from the source beside it and the op table: edit those."""

'''
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def stubs() -> dict[Path, str]:
    """The stub files and their texts."""
    made = [(base, "Backend", _backend_methods), (optree, "Operators", _operators)]
    return {Path(module.__file__).with_suffix(".pyi"): _stub(module, name, methods) for module, name, methods in made}


def _stub(module: ModuleType, extended: str, methods: Callable[[], Iterator[str]]) -> str:
    imports, parts = [], []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            parts.append(_class(node, methods() if node.name == extended else ()))
        elif isinstance(node, ast.FunctionDef) and node.name in module.__all__:
            parts.append(_function(node))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            imports += node.body
    text = "\n\n".join(parts)
    kept = filter(None, (_needed_part(node, set(re.findall(r"\w+", text))) for node in imports))
    return HEAD + "\n".join([*kept, "", f"__all__ = {module.__all__!r}", "", text, ""])


def _needed_part(node: ast.Import | ast.ImportFrom, words: set[str]) -> str:
    """The import statement with the names that are used."""
    node.names = [alias for alias in node.names if (alias.asname or alias.name) in words]
    return ast.unparse(node) if node.names else ""


def _function(node: ast.FunctionDef) -> str:
    node.body = [ast.Expr(ast.Constant(...))]
    return ast.unparse(node).replace(":\n    ...", ": ...")


def _class(node: ast.ClassDef, extra: Iterator[str] | tuple) -> str:
    """The class: its attributes, the signatures of its methods, and extra methods."""
    declared = {ast.unparse(i.target): ast.unparse(i.annotation) for i in node.body if isinstance(i, ast.AnnAssign)}
    lines = [f"{name}: {kind}" for name, kind in {**_attributes(node), **declared}.items()]
    lines += [ast.unparse(item) for item in node.body if isinstance(item, ast.Assign)]
    lines += [_function(item) for item in node.body if isinstance(item, ast.FunctionDef)]
    body = "\n".join([*lines, *extra]).replace("\n", "\n    ")
    return f"class {node.name}({', '.join(map(ast.unparse, node.bases))}):\n    {body}"


def _attributes(node: ast.ClassDef) -> dict[str, str]:
    """The attributes that methods set on `self`, with their annotations."""
    found: dict[str, str] = {}
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store) and ast.unparse(item.value) == "self":
            found.setdefault(item.attr, "Any")
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Attribute):
            found[item.target.attr] = ast.unparse(item.annotation)
    return found


def _method(name: str, parameters: list[str], result: str, doc: str, comment: str = "") -> str:
    return f'def {name}({", ".join(["self", *parameters])}) -> {result}:{comment}\n    """{doc}"""'


def _backend_methods() -> Iterator[str]:
    """The methods that `Backend` gets from the table, and those of the composites."""
    for name in [name for op in ops.OPS.values() for name in op.methods] + list(composite.COMPOSITES):
        method = getattr(base.Backend, name)
        parameters = list(inspect.signature(method).parameters.values())[1:]
        yield _method(name, list(map(_parameter, parameters)), "Any", inspect.getdoc(method))


def _parameter(parameter: inspect.Parameter) -> str:
    annotation = "Tensor | None" if parameter.name == "out" else parameter.annotation
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {annotation}{default}"


def _operators() -> Iterator[str]:
    """The Python operators of tensors and op-trees."""
    for op in ops.elementwise():
        if op.dunder is None:
            continue
        others = ["other: Any"] * (op.arity - 1)
        comment = "  # type: ignore[override]" if op.dunder in ("eq", "ne") else ""
        yield _method(f"__{op.dunder}__", others, "OpTreeNode", op.doc, comment)
        if op.arity == 2 and op.dunder not in COMPARISONS:
            yield _method(f"__r{op.dunder}__", others, "OpTreeNode", op.doc)
