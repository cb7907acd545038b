# SPDX-License-Identifier: Apache-2.0
"""What `help()` says of the names that users have: it says something, and which errors a function raises."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from tensorbackend import Backend
from tensorbackend.api_page import MODULES, public_names

AS_ANOTHER = re.compile(r"(Raises|errors) as `\w+`")
"""How a docstring says that another one says which errors are raised."""


def members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A public object under its name; of a class also its own public methods and properties."""
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not callable(value):
        return
    yield name, value
    if inspect.isclass(value):
        for key, member in vars(value).items():
            if not key.startswith("_"):
                yield from members(f"{name}.{key}", member)


def everything() -> dict[Any, str]:
    """All that users can call, and its name."""
    found: dict[Any, str] = {}
    for module in (importlib.import_module(f"tensorbackend.{name}".rstrip(".")) for name in MODULES):
        for name, value in public_names(module).items():
            found |= {member: f"{module.__name__}.{full}" for full, member in members(name, value)}
    for base in Backend.__mro__[:-1]:
        found |= {member: full for full, member in members("Backend", base)}
    return found


def raised(function: Any) -> set[str]:
    """The errors that a function's own lines raise, but that of methods which subclasses have to write."""
    body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    thrown = [node.exc for node in ast.walk(body) if isinstance(node, ast.Raise) and node.exc is not None]
    names = {ast.unparse(exc.func if isinstance(exc, ast.Call) else exc).rpartition(".")[2] for exc in thrown}
    return {name for name in names if name.endswith("Error")} - {"NotImplementedError"}


def test_every_public_name_says_what_it_is() -> None:
    assert len(found := everything()) > 700
    assert [name for value, name in found.items() if not inspect.getdoc(value)] == []


def test_errors_that_a_function_raises_are_said() -> None:
    unsaid = []
    for function, name in everything().items():
        said = inspect.getdoc(function)
        if inspect.isfunction(function) and "<" not in function.__code__.co_filename and not AS_ANOTHER.search(said):
            unsaid += [f"{name} raises {error}" for error in sorted(raised(function)) if error not in said]
    assert unsaid == []


def test_methods_of_the_table_say_edge_cases_as_it_does() -> None:
    assert Backend.max.__doc__.endswith("of nothing: ShapeError.")
    assert "0/0 NaN" in Backend.divide.__doc__
