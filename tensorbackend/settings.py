# SPDX-License-Identifier: Apache-2.0
"""Every setting, declared once: variable, type, default and meaning.

`config` holds the values: of the environment when the package was imported, of assignments to its
attributes since (for all threads), and of `using(...)` blocks (for the thread inside the block).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tensorbackend import dtypes
from tensorbackend.errors import complain, nearest

__all__ = ["SETTINGS", "Setting", "anywhere", "as_they_are", "checked", "config", "everywhere", "using", "when_changed"]


@dataclass(frozen=True)
class Setting:
    """One setting: its attribute `name`, environment `variable`, how the text is read, its default and meaning."""

    name: str
    variable: str
    parse: Callable[[str], Any]
    default: Any
    doc: str


def flag(text: str) -> bool:
    """Yes or no. Raises `ValueError` for what is neither."""
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("neither 1 nor 0")


MOST_SECONDS = 1e6
"""As long as a program may be waited for: the system counts milliseconds in 32 bits."""


def seconds(text: str) -> float:
    """A time to wait. Raises `ValueError` for what is none, as infinity and NaN are."""
    number = float(text)
    if not 0 < number <= MOST_SECONDS:
        raise ValueError(f"expected more than 0, at most {MOST_SECONDS:.0f}")
    return number


def count(text: str) -> int:
    """A number of things. Raises `ValueError` for what is none, and for less than 1."""
    number = int(text)
    if number < 1:
        raise ValueError("expected 1 or more")
    return number


MOST_SEED = 2**32 - 1
"""The largest random seed: NumPy's generators take no larger one."""


def seed(text: str) -> int:
    """A random seed. Raises `ValueError` for what is none."""
    number = int(text)
    if not 0 <= number <= MOST_SEED:
        raise ValueError(f"expected 0 to {MOST_SEED}")
    return number


def floating(given: Any) -> Any:
    """An element type of floats, in the form given. Raises `DTypeError` for another."""
    dtypes.as_float(given)
    return given


READ_AS = {
    flag: "1 or 0", int: "an int", count: "an int, 1 or more", str: "text", seed: "an int from 0 to 2^32 - 1",
    floating: f"one of {', '.join(d.name for d in dtypes.FLOATS)}",
    seconds: f"a number of seconds, more than 0 and at most {MOST_SECONDS:.0f}",
}  # fmt: skip
"""What a setting's text must be, by the function that reads it."""


SETTINGS = {
    s.name: s
    for s in [
        Setting("backend", "TB_BACKEND", str, "cpu", "The backend that `gen_backend()` makes when none is named."),
        Setting("jit", "TB_JIT", flag, True, "Compile trees to C; 0 runs them through NumPy in blocks."),
        Setting("native", "TB_NATIVE", flag, True, "Use the native node and tensor types where they can be built."),
        Setting("seed", "TB_SEED", seed, None, "The random seed when `rng_seed` is not given."),
        Setting("dtype", "TB_DTYPE", floating, "float32", "The default element type when `datatype` is not given."),
        Setting(
            "debug",
            "TB_DEBUG",
            int,
            0,
            "What is logged, each level adding to the one before. 1: backends and compiler runs; 2: a line for each "
            "kernel that runs, with time and share of the roofline; 3: the trees, and why each kernel is "
            "one of its own; 4: the source of each kernel when it is made; 5: the compiler's commands.",
        ),
        Setting("check", "TB_CHECK", flag, False, "Compare each kernel that runs with the interpreter; slow."),
        Setting(
            "tune",
            "TB_TUNE",
            flag,
            True,
            "Time candidates when a shape comes first; 0 lets the shape alone decide.",
        ),
        Setting(
            "matrix_unit",
            "TB_MATRIX_UNIT",
            flag,
            True,
            "Multiply large matrices on the processor's matrix unit (AMX): a float32 as three bfloat16 numbers.",
        ),
        Setting("threads", "TB_THREADS", count, None, "CPU threads; unset: OMP_NUM_THREADS, else the cores allowed."),
        Setting("cc", "TB_CC", str, None, "The C compiler; unset: CC, cc, gcc or clang on PATH, or ziglang."),
        Setting("cflags", "TB_CFLAGS", str, "", "Flags added to every compilation."),
        Setting(
            "sanitize", "TB_SANITIZE", flag, False, "Compile kernels with the address and undefined-behaviour checks."
        ),
        Setting(
            "cache",
            "TB_CACHE",
            str,
            None,
            "Folder of compiled kernels; unset: tensorbackend in XDG_CACHE_HOME, else in ~/.cache.",
        ),
        Setting(
            "cache_limit",
            "TB_CACHE_LIMIT",
            count,
            1024,
            "MiB of compiled kernels in that folder at most; those that were not used for longest go.",
        ),
        Setting(
            "emulator_order",
            "TB_EMULATOR_ORDER",
            str,
            "forward",
            "Order of threads and blocks in the CUDA emulator: forward, reverse or random.",
        ),
        Setting("compile_timeout", "TB_COMPILE_TIMEOUT", seconds, 60.0, "Seconds after which a compiler is stopped."),
        Setting(
            "distributed_timeout",
            "TB_DISTRIBUTED_TIMEOUT",
            seconds,
            None,
            "Seconds without an exchange after which processes that train together print where they are, and end.",
        ),
    ]
}


class _Here(threading.local):
    """What a thread has of its own: the settings of its `using` blocks, and all others as they were (`as_they_are`)."""

    overrides: dict[str, Any] = {}
    kept: dict[str, Any] | None = None


class Config:
    """The values of the settings, as attributes. Unknown names raise `AttributeError` with the nearest known ones, and
    assigned values that the setting cannot have `ValueError`."""

    def __init__(self) -> None:
        values = {name: _from_environment(s) for name, s in SETTINGS.items()}
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_local", _Here())

    def __getattr__(self, name: str) -> Any:
        local = self._local
        if name in local.overrides:
            return local.overrides[name]
        try:
            return (local.kept or self._values)[name]
        except KeyError:
            raise AttributeError(f"no setting {name!r}: try {nearest(name, SETTINGS)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        value = self._values[name] = checked(name, value)
        if self._local.kept is not None:
            self._local.kept[name] = value
        _tell()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *SETTINGS]

    def __reduce__(self) -> str:
        return "config"  # there is one: copies are it, and another process has its own

    def __repr__(self) -> str:
        return "\n".join(f"{name:<16} {getattr(self, name)!r}" for name in SETTINGS)


def _from_environment(setting: Setting) -> Any:
    text = os.environ.get(setting.variable)
    if text is None or text == "":
        return setting.default
    return _read(setting, f"{setting.variable}: cannot be read", text)


def _read(setting: Setting, head: str, given: Any) -> Any:
    """A setting's value from a text, or from what is written as one. Raises `ValueError` for what it cannot be."""
    try:
        if setting.parse is str:
            return os.fsdecode(given)
        if setting.parse is floating:  # types have other forms than text
            return floating(given)
        return setting.parse(str(int(given) if isinstance(given, bool) else given))
    except (TypeError, ValueError) as error:
        raise ValueError(complain(head, repr(given), READ_AS[setting.parse], setting.doc)) from error


def checked(name: str, value: Any) -> Any:
    """A value for a setting, as the environment's text for it would be read. Raises `AttributeError` for a name that no
    setting has, `ValueError` for what cannot be read."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise AttributeError(f"no setting {name!r}: try {nearest(name, SETTINGS)}")
    if value is None and setting.default is None:
        return value
    return _read(setting, f"setting {name}", value)


class Held(dict[tuple[int, int], Any]):
    """What threads hold during a block, in the order in which these began; `changed` is called when one begins or ends.

    The keys are thread and identity: threads begin and end blocks at the same time, and equal items are several.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed

    def begin(self, item: Any) -> None:
        """The calling thread holds an item."""
        self[threading.get_ident(), id(item)] = item
        self._changed()

    def end(self, item: Any) -> None:
        """It holds it no more, if it did: an interrupt may have come before it began."""
        self.pop((threading.get_ident(), id(item)), None)
        self._changed()

    def go_on_alone(self) -> None:
        """In a forked child: threads that are not there hold nothing."""
        for key in list(self):
            if key[0] != threading.get_ident():
                del self[key]
        self._changed()


config = Config()
_listeners: list[Callable[[], None]] = []


def _tell() -> None:
    for listener in _listeners:
        listener()


_overrides = Held(_tell)
"""The settings of the `using` blocks that any thread is in."""


def when_changed(listener: Callable[[], None]) -> None:
    """Call `listener` now, and whenever a setting is assigned or a `using` block begins or ends."""
    _listeners.append(listener)
    listener()


def anywhere(name: str, wanted: Callable[[Any], bool]) -> bool:
    """Whether a setting has a value for which `wanted` holds, for all threads or in any thread's `using` block."""
    return any(wanted(values[name]) for values in [config._values, *_overrides.values()] if name in values)


def everywhere(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The values of settings for all threads, then those of each `using` block, of any thread, that has some."""
    everyone = [config._values, *_overrides.values()]
    found = [{name: values[name] for name in names if name in values} for values in everyone]
    return [values for values in found if values]


def go_on_alone() -> None:
    """In a forked child: the `using` blocks of threads that are not there have ended."""
    _overrides.go_on_alone()


@contextlib.contextmanager
def as_they_are() -> Iterator[None]:
    """To the calling thread, settings are inside the `with` block as they are now, whatever other threads assign."""
    local = config._local
    before = local.kept
    try:
        local.kept = dict(config._values)
        yield
    finally:
        local.kept = before


@contextlib.contextmanager
def using(**overrides: Any) -> Iterator[Config]:
    """Settings for the calling thread inside a `with` block: `with using(debug=2): ...`.

    Raises `AttributeError` for a name that no setting has, `ValueError` for a value that it cannot have.
    """
    overrides = {name: checked(name, value) for name, value in overrides.items()}
    local = config._local
    before = local.overrides
    try:
        local.overrides = {**before, **overrides}
        _overrides.begin(overrides)
        yield config
    finally:
        local.overrides = before
        try:
            _overrides.end(overrides)
        except BaseException:  # an interrupt, perhaps before it began
            _overrides.end(overrides)
            raise
