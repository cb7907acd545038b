# SPDX-License-Identifier: Apache-2.0
"""What functions ask of their thread: `config`, whose unset entries are those of `global_config`.

The engine's settings (`settings.py`) hold for all threads; those whose names are no entry here can be read and assigned
through `config` too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.errors import DTypeError, complain, nearest

__all__ = ["config", "force_backprop_mode", "global_config", "lookup", "no_backprop_mode", "using_config"]


def _flag(variable: str, default: bool) -> bool:
    text = os.environ.get(variable, "")
    try:
        return settings.flag(text) if text else default
    except ValueError:
        raise ValueError(complain(f"{variable}: cannot be read", repr(text), "1 or 0")) from None


FLAGS = frozenset({"train", "enable_backprop", "type_check", "debug", "keep_graph_on_report", "deterministic"})


def _checked(name: str, value: Any) -> Any:
    """A value for an entry. Raises `DTypeError` for a `dtype` that is no floating type, `TypeError` for a flag that is
    neither True nor False; other names are the user's."""
    if name in FLAGS and value is not True and value is not False:
        if not isinstance(value, (int, np.integer, np.bool_)) or value not in (0, 1):
            raise TypeError(complain(f"config.{name}", repr(value)[:200], "True or False"))
        return bool(value)
    if name == "dtype":
        try:
            return dtypes.as_float(value)
        except DTypeError:
            floats = ", ".join(d.name for d in dtypes.FLOATS)
            raise DTypeError(complain("config.dtype", repr(value)[:200], f"a floating type: {floats}")) from None
    return value


class _Entries:
    """Entries as attributes, checked when they are assigned."""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = _checked(name, value)

    def __repr__(self) -> str:
        return self.show()

    def show(self) -> str:
        """The entries and their values, one a line."""
        return _shown(vars(self))


class GlobalConfig(_Entries):
    """The entries of all threads that have none of their own.

    `train` says whether functions such as dropout behave as in training, `enable_backprop` whether graphs are
    recorded, `type_check` whether functions check their inputs, `debug` whether NaN is looked for, `dtype` the
    element type of new parameters, `keep_graph_on_report` and `deterministic` are for user code.
    """

    def __init__(self) -> None:
        self.train = True
        self.enable_backprop = True
        self.type_check = _flag("TB_TYPE_CHECK", True)
        self.debug = _flag("TB_NAN_CHECK", False)
        self.dtype = settings.config.dtype
        self.keep_graph_on_report = False
        self.deterministic = True


class LocalConfig(_Entries, threading.local):
    """The entries of the calling thread. Deleting one uncovers the global one; unknown names can be set. Raises
    `TypeError` for a flag that is neither True nor False, and a `dtype` that is no floating type."""

    def __getattr__(self, name: str) -> Any:
        entries = vars(global_config)
        if name in entries:
            return entries[name]
        if name in settings.SETTINGS:
            return getattr(settings.config, name)
        raise AttributeError(f"no entry {name!r} of the configuration: try {nearest(name, entries)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in settings.SETTINGS and name not in vars(global_config):
            setattr(settings.config, name, value)
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *vars(global_config), *settings.SETTINGS})

    def __reduce__(self) -> str:
        return "config"  # there is one: copies are it, and another process has its own

    def show(self) -> str:
        """The entries that hold in this thread, one a line."""
        return _shown({**vars(global_config), **self.__dict__})


def _shown(entries: dict[str, Any]) -> str:
    return "\n".join(f"{name:<20} {value!r}" for name, value in sorted(entries.items()))


global_config = GlobalConfig()
config = LocalConfig()
_entries = vars(global_config)


def lookup(name: str) -> Any:
    """An entry as it holds in this thread, quickly."""
    own = config.__dict__
    return own[name] if name in own else _entries[name]


class held:
    """An entry of this thread inside a `with` block, or a function that it decorates, as given; afterwards it is what
    it was, or unset again."""

    __slots__ = ("_before", "_name", "_value", "_was_set")

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call of which is such a block."""

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with held(self._name, self._value):
                return function(*arguments, **keywords)

        return call

    def __enter__(self) -> None:
        own = config.__dict__
        self._was_set, self._before = self._name in own, own.get(self._name)
        own[self._name] = self._value

    def __exit__(self, *error: object) -> None:
        own = config.__dict__
        if self._was_set:
            own[self._name] = self._before
        else:
            own.pop(self._name, None)


@contextlib.contextmanager
def using_config(name: str, value: Any) -> Iterator[None]:
    """An entry of this thread inside a `with` block; afterwards it is what it was, or unset again. Settings of the
    engine are set as by `settings.using`. Raises `TypeError` for what is no name, and as assignment does."""
    if not isinstance(name, str):
        given = f"{type(name).__name__} {name!r}"[:200]
        raise TypeError(complain("using_config: name", given, "a str, such as 'train'"))
    if name in settings.SETTINGS and name not in _entries:
        with settings.using(**{name: value}):
            yield
        return
    with held(name, _checked(name, value)):
        yield


def no_backprop_mode() -> held:
    """A block, or a function that it decorates, in which no graph is recorded."""
    return held("enable_backprop", False)


def force_backprop_mode() -> held:
    """A block, or a function that it decorates, in which graphs are recorded, also inside `no_backprop_mode`."""
    return held("enable_backprop", True)
