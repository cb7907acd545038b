# SPDX-License-Identifier: Apache-2.0
"""docs/api.md: every public name, with its arguments and the first sentence of its docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["MODULES", "api_page", "public_names"]

MODULES = (
    "", "functions", "links", "optimizers", "initializers", "iterators", "serializers", "utils", "distributed",
    "gradient_check", "function_hooks", "errors", "arguments", "settings",
    "kernel_files",
)  # fmt: skip
"""The modules whose names are for users; the first is the package itself."""

HEAD = """# Every public name

<!-- Written by `./dev docs` from docstrings: edit those. -->

With the first sentence of what `help()` says of it. Methods of a backend are in [ops.md](ops.md) and
[primitives.md](primitives.md); settings in [settings.md](settings.md).
"""


def public_names(module: ModuleType) -> dict[str, Any]:
    """The functions, classes and other objects that a module has for users, by name, without modules."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in sorted(found.items()) if not isinstance(value, ModuleType)}


def api_page() -> str:
    """The text of docs/api.md. Raises `ValueError` for a public name that has no docstring."""
    parts = [HEAD]
    for name in MODULES:
        module = importlib.import_module(f"tensorbackend.{name}".rstrip("."))
        parts.append(f"## {module.__name__}\n\n{_first_sentence(module)}\n")
        parts += [f"{title}| Name | |\n| --- | --- |\n{''.join(rows)}" for title, rows in _tables(module)]
    return "\n".join(parts)


def _tables(module: ModuleType) -> Iterator[tuple[str, list[str]]]:
    """The rows of a module under their headings: functions by the file that defines them, all else together."""
    groups: dict[str, list[str]] = {}
    for name, value in public_names(module).items():
        own = getattr(inspect.unwrap(value) if callable(value) else value, "__module__", "")
        part = own if own.startswith("tensorbackend.functions.") and module.__name__.endswith(".functions") else ""
        groups.setdefault(part, []).extend(_rows(name, value, whole=module.__name__ != "tensorbackend"))
    for part, rows in sorted(groups.items()):
        yield (f"### {_first_sentence(importlib.import_module(part)).rstrip('.')}\n\n" if part else ""), rows


def _rows(name: str, value: Any, whole: bool) -> Iterator[str]:
    """The row of a name; of a class, then those of its own methods and properties, unless another section has them."""
    if not callable(value):
        said = f"By name: {', '.join(value)}." if isinstance(value, dict) else _first_sentence(type(value))
        yield _row(name, "", said)
        return
    yield _row(name, _parameters(value), _first_sentence(value))
    if not inspect.isclass(value) or name == "Backend" or not whole and _has_section(value):
        return
    for key, member in sorted(vars(value).items()):
        if key.startswith("_") or not (callable(member) or isinstance(member, (property, classmethod, staticmethod))):
            continue
        found = getattr(value, key)
        shown = "" if isinstance(member, property) else _parameters(found)
        yield _row(f"{name}.{key}", shown, _first_sentence(found))


def _has_section(value: Any) -> bool:
    """Whether a module of `MODULES` beside the first defines or shows a class."""
    return any(value.__module__.startswith(f"tensorbackend.{name}") for name in MODULES if name)


def _first_sentence(value: Any) -> str:
    """The first sentence of a docstring, as one line; "" without a docstring."""
    line = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.sub(r":$", ".", re.split(r"(?<=\.) (?=[A-Z`])", line)[0])


def _row(name: str, parameters: str, said: str) -> str:
    """A row. Raises `ValueError` for a name of which nothing is said."""
    if not said:
        raise ValueError(f"{name} has no docstring")
    cell = said.replace("|", "\\|")
    return f"| `{name}{parameters}` | {cell} |\n"


def _parameters(value: Any) -> str:
    """The parameters with defaults, without annotations; of an error or a built-in without a signature nothing."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return ""
    found = [p.replace(annotation=p.empty) for p in inspect.signature(value).parameters.values() if p.name != "self"]
    shown = re.sub(r"<class '([\w.]+)'>", r"\1", f"({', '.join(map(str, found))})")
    return re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "…", shown)
