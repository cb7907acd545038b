# SPDX-License-Identifier: Apache-2.0
"""Saving links and optimizers as NumPy's npz files or safetensors files, and loading them.

No pickle is written or read.
"""

from __future__ import annotations

import itertools
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import KeyRefused, complain
from tensorbackend.function import arrays

__all__ = [
    "DictionarySerializer", "NpzDeserializer", "RandomState", "load_npz", "load_safetensors", "read_npz",
    "save_npz", "save_safetensors", "write_npz",
]  # fmt: skip


class DictionarySerializer:
    """Collects copies of arrays in a dictionary, `target`, under paths such as 'l1/W'."""

    _copies = True

    def __init__(self, target: dict[str, Any] | None = None, path: str = "") -> None:
        self.target = {} if target is None else target
        self.path = path

    def __getitem__(self, name: str) -> DictionarySerializer:
        """The serializer of a part."""
        return type(self)(self.target, f"{self.path}{name}/")

    def __call__(self, key: str, value: Any) -> Any:
        """Store a value: an array, a number, a list of numbers, or None for what is not there yet. Returns it."""
        stored = np.zeros(0, np.float32) if value is None else value
        host = arrays.to_cpu(stored) if arrays.is_array(stored) else np.asarray(stored)
        if host.dtype == object or (isinstance(value, (list, tuple)) and not _holds_numbers(host)):
            given = f"{self.path}{key}: {type(value).__name__}"
            raise TypeError(complain("serializer: a value that is no array", given, "an array, a number or numbers"))
        path = f"{self.path}{key}"
        self.target[path] = host.copy() if self._copies and isinstance(value, np.ndarray) else host
        if value is None:
            self.target[f"{path}{_ABSENT}"] = np.asarray(True)
        return value

    def save(self, thing: Any) -> dict[str, Any]:
        """Collect a link or an optimizer. Returns the dictionary. Raises `TypeError` for what is neither."""
        _check_thing("save", thing)
        thing.serialize(self)
        return self.target


class _AtOnce(DictionarySerializer):
    """Collects what is written to a file at once: NumPy's arrays as they are."""

    _copies = False


_ABSENT = ".absent"
"""The end of keys that say that there was no array."""


class NpzDeserializer:
    """Gives back what was stored under paths in a dictionary-like object.

    With `strict` a missing key is a `KeyError`, else the value stays; `ignore_names` are keys, or functions of keys,
    that stay as well.
    """

    def __init__(self, npz: Any, path: str = "", strict: bool = True, ignore_names: Any = None) -> None:
        self.npz = npz
        self.path = path
        self.strict = strict
        names = ignore_names or ()
        if not isinstance(names, (str, list, tuple, set, frozenset)) and not callable(names):
            expected = "a name, a function of names, or a list of them"
            raise TypeError(complain("ignore_names", repr(names)[:200], expected))
        self._ignored: Iterable[Any] = (names,) if isinstance(names, str) or callable(names) else tuple(names)
        self._asked: set[str] = set()
        self._held: dict[str, list[str]] = {}  # the names in each part, of all parts together

    def __getitem__(self, name: str) -> NpzDeserializer:
        """The deserializer of a part."""
        made = type(self)(self.npz, f"{self.path}{name}/", self.strict, self._ignored)
        made._held = self._held
        return made

    def _ignores(self, key: str) -> bool:
        return any(name(key) if callable(name) else name == key for name in self._ignored)

    def _holds(self, path: str, value: Any) -> bool:
        """Whether there is something for a value; it has been checked that it fits."""
        self._asked.add(path.rpartition("/")[2])
        if self._ignores(path):
            return False
        if path not in self.npz:
            if self.strict:
                hint = "strict=False"
                raise KeyRefused(complain("load: a missing key", repr(path), "a file of the same model", hint))
            return False
        if value is None or f"{path}{_ABSENT}" in self.npz:
            return True
        if arrays.is_array(value):
            self._expect(path, value.shape, value.dtype)
            if not arrays.is_writable(value):
                hint = "a copy in its place"
                raise ValueError(complain(f"load: {path}", "a read-only array", "one that may be written", hint))
        else:
            found, listed = self.npz[path], isinstance(value, (list, tuple))  # lists are of any length
            self._expect(path, found.shape if listed else (), float if listed else found.dtype)
            _as_value(path, value, self.npz[path])
        return True

    def _expect(self, path: str, shape: tuple[int, ...] | None, dtype: Any) -> None:
        """Raise `ValueError` for an array of another shape (None: any), or that is neither of a type nor of numbers."""
        found = self.npz[path]
        if shape is not None and found.shape != shape:
            raise ValueError(complain(f"load: {path}", f"shape {found.shape}", f"shape {shape}"))
        if found.dtype != dtype and not _holds_numbers(found):
            wanted = f"numbers that become {dtype}"
            raise ValueError(complain(f"load: {path}", f"array of {found.dtype}", wanted))

    def expect(self, key: str, shape: tuple[int, ...] | None, dtype: Any) -> None:
        """Check what will be loaded where there is no array yet. Raises `ValueError` for one of another shape (None:
        any will do), and for what are no numbers."""
        path = f"{self.path}{key}"
        if path in self.npz and f"{path}{_ABSENT}" not in self.npz and not self._ignores(path):
            self._expect(path, shape, dtype)

    def expect_no_more(self, what: str, *besides: str) -> None:
        """Check that all values of this part have been asked for, but for those named `besides`. Raises `ValueError`
        for others that are not ignored, if `strict`; `what` says in its message which were expected."""
        if not self._held:
            for path in self.npz:
                part, slash, name = path.removesuffix(_ABSENT).rpartition("/")
                self._held.setdefault(f"{part}{slash}", []).append(name)
        more = {*self._held.get(self.path, ())} - {*self._asked, *besides}
        more = {name for name in more if self.strict and not self._ignores(f"{self.path}{name}")}
        if more:
            given, hint = ", ".join(sorted(more)), "the one that was saved, or strict=False to leave the rest"
            raise ValueError(complain(f"load: {self.path}", given, what, hint))

    def __call__(self, key: str, value: Any) -> Any:
        """Load a value: into an array in place, which keeps device and type; a number is returned, and of None an array
        of one's own."""
        path = f"{self.path}{key}"
        if not self._holds(path, value):
            return value
        if f"{path}{_ABSENT}" in self.npz:
            return None
        found = self.npz[path]
        if value is None:
            return found.copy()
        if not arrays.is_array(value):
            return _as_value(path, value, found)
        arrays.copy_into(arrays.target(value), found)
        return value

    def load(self, thing: Any) -> None:
        """Load a link or an optimizer. Raises `KeyError` for what is missing, if `strict`, and `ValueError` for a shape
        that differs, for what are no numbers, for states of another optimizer, if `strict`, and for an array that may
        not be written, before anything is changed; `TypeError` for another object."""
        _check_thing("load", thing)
        thing.serialize(_Checker(self.npz, self.path, self.strict, self._ignored))
        thing.serialize(self)


def _check_thing(what: str, thing: Any) -> None:
    if not callable(getattr(thing, "serialize", None)):
        raise TypeError(complain(what, type(thing).__name__, "a link, an optimizer, or what has serialize(serializer)"))


def _holds_numbers(found: np.ndarray) -> bool:
    return found.dtype.kind in "biuf" or dtypes.is_float(found.dtype)


def _as_value(path: str, value: Any, found: np.ndarray) -> Any:
    """What was found, as a number or list of a value's type; a count's is whole."""
    try:
        made = type(value)(found.tolist())
        if isinstance(value, (int, np.integer)) and made != found:
            raise ValueError
        return made
    except (TypeError, ValueError, OverflowError) as error:
        given = f"{found.tolist()!r} ({found.dtype})"
        raise ValueError(complain(f"load: {path}", given, f"what becomes {type(value).__name__}")) from error


class _Checker(NpzDeserializer):
    """Finds out whether everything fits, and changes nothing."""

    def __call__(self, key: str, value: Any) -> Any:
        self._holds(f"{self.path}{key}", value)
        return value


class RandomState:
    """The random numbers of a backend (None: of NumPy arrays), to be saved with what uses them."""

    def __init__(self, backend: Any = None) -> None:
        self.backend = arrays.host_backend() if backend is None else backend

    def serialize(self, serializer: Any) -> None:
        """Save or load the state of all generators."""
        (kind, words, *rest), key, draws = self.backend.rng_get_state()
        place, has_normal, normal = (serializer(n, x) for n, x in zip(("place", "has_normal", "normal"), rest))
        host = (kind, serializer("words", words), place, has_normal, normal)
        self.backend.rng_set_state((host, int(serializer("key", np.uint64(key))), serializer("draws", draws)))


def save_npz(file: Any, obj: Any, compression: bool = True) -> None:
    """Write a link or an optimizer to a file (a path or a file object) that `numpy.load` reads. At a path there is at
    any moment a whole file, this one or the one before. bfloat16, which NumPy's files lack, is stored as float32."""
    collected = _AtOnce().save(obj)
    with whole_file(file) as out:
        _write_npz(out, collected, compression)


def write_npz(path: Any, arrays: Mapping[str, np.ndarray], compression: bool = True) -> None:
    """Write arrays by name as an .npz, beside its place and then into it: whoever is killed, what is there is whole.
    A pipe or a device is written into at once. bfloat16, which NumPy's files lack, is stored as float32.

    Raises `OSError` where the folder cannot be written, `TypeError` for what are no arrays by name.
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(complain("write_npz: arrays", type(arrays).__name__, "a dict of arrays by name"))
    with whole_file(path) as out:
        _write_npz(out, arrays, compression)


def _write_npz(file: Any, arrays: Mapping[str, np.ndarray], compression: bool) -> None:
    """What `np.savez` writes, which takes no arrays by the names of its own parameters, `file` and `allow_pickle`."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if compression else zipfile.ZIP_STORED) as out:
        for name, x in arrays.items():
            plain = x.astype(np.float32) if x.dtype == dtypes.BFLOAT16 else x
            with out.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, plain, allow_pickle=False)


def _path(file: Any) -> Path:
    """Raise `TypeError` for what is no path: a number would be an open file's."""
    if isinstance(file, (str, os.PathLike)):
        return Path(file)
    raise TypeError(complain("file", f"{type(file).__name__} {file!r}"[:200], "a path, or a file object"))


_number = itertools.count()
"""Of files on their way: a signal's handler or another thread may save to the same path meanwhile."""


@contextmanager
def whole_file(file: Any) -> Iterator[Any]:
    """A file object, or a file that takes its place at a path, or where a link there leads, once it is whole, with the
    permissions of the one before; a pipe or a device keeps its place."""
    if hasattr(file, "write"):
        yield file
        return
    path = _path(file)
    if path.exists() and not path.is_file():
        with open(path, "wb") as out:
            yield out
        return
    path = Path(os.path.realpath(path))
    beside = path.with_name(f".{path.name}.{os.getpid()}-{next(_number)}.part")
    try:
        with open(beside, "wb") as out:
            if path.exists() and (mode := path.stat().st_mode) != beside.stat().st_mode:
                beside.chmod(stat.S_IMODE(mode))
            yield out
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load_npz(file: Any, obj: Any, path: str = "", strict: bool = True, ignore_names: Any = None) -> None:
    """Load a link or an optimizer from a file of `save_npz`; `path` is where it is inside. Raises `KeyError` for what
    is missing, if `strict`, and `ValueError` for a file that is not whole, for shapes that differ, for what are no
    numbers and, if `strict`, for states of another optimizer, before anything is changed."""
    NpzDeserializer(read_npz(file), path, strict, ignore_names).load(obj)


def read_npz(file: Any) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name. Raises `OSError` without the file, `ValueError` for one that is not whole."""
    file = file if hasattr(file, "read") else _path(file)
    try:
        with np.load(file, allow_pickle=False) as npz:
            return dict(npz)
    except Exception as error:  # damaged bytes end in errors of every kind, also OSError: but those name no file
        if isinstance(error, MemoryError) or getattr(error, "filename", None) is not None:
            raise
        other = isinstance(error, (AttributeError, TypeError)) or "pickled" in str(error)  # what NumPy takes others for
        given = f"{file}: {'no zip archive' if other else error}"
        raise ValueError(complain("not a whole .npz", given, "a file of arrays by name")) from error


def save_safetensors(file: Any, obj: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Write a link or an optimizer to a file (a path or a file object) in the safetensors format, with every type as
    it is, and `metadata`, texts by name, beside it. At a path there is at any moment a whole file.

    Raises `ImportError` without the package: pip install 'tensorbackend[safetensors]'. Source: the format's
    description, https://huggingface.co/docs/safetensors. Raises `TypeError` for metadata that are no such texts, and
    for values of types that the format lacks, such as text.
    """
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(complain("save_safetensors: metadata", repr(metadata)[:200], "a dict of texts by name"))
    safetensors = _safetensors()
    target = _AtOnce().save(obj)
    stored = {name: np.asarray(x, order="C") for name, x in target.items()}
    for name, x in stored.items():
        if x.dtype.newbyteorder("<") not in _SAFETENSORS_TYPES.values():
            expected = ", ".join(_SAFETENSORS_TYPES)
            raise TypeError(complain(f"save_safetensors: {name}", f"array of {x.dtype}", expected, "save_npz"))
    with whole_file(file) as out:
        out.write(safetensors.numpy.save(stored, dict(metadata) if metadata else None))


def load_safetensors(file: Any, obj: Any, path: str = "", strict: bool = True, ignore_names: Any = None) -> None:
    """Load a link or an optimizer from a file of `save_safetensors`; arguments and `KeyError` as of `load_npz`.

    Raises `ValueError` for a file that is no whole safetensors file, or holds types that no backend has, before
    anything is changed; `ImportError` without the package.
    """
    safetensors = _safetensors()
    data = file.read() if hasattr(file, "read") else _path(file).read_bytes()
    try:
        stored = {name: _unpacked(name, **facts) for name, facts in safetensors.deserialize(data)}
    except safetensors.SafetensorError as error:
        raise ValueError(complain("load_safetensors", str(error), "a whole file in the safetensors format")) from error
    NpzDeserializer(stored, path, strict, ignore_names).load(obj)


def _unpacked(name: str, dtype: str, shape: list[int], data: bytes) -> np.ndarray:
    if dtype not in _SAFETENSORS_TYPES:
        raise ValueError(complain(f"load_safetensors: {name}", f"type {dtype}", ", ".join(_SAFETENSORS_TYPES)))
    return np.frombuffer(data, _SAFETENSORS_TYPES[dtype]).reshape(shape)


_SAFETENSORS_TYPES = {"BOOL": np.dtype(bool), "BF16": np.dtype(dtypes.BFLOAT16)} | {
    f"{letter}{8 * size}": np.dtype(f"<{kind}{size}")
    for letter, kind, sizes in [("F", "f", (2, 4, 8)), ("I", "i", (1, 2, 4, 8)), ("U", "u", (1, 2, 4, 8))]
    for size in sizes
}


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        wanted = "pip install 'tensorbackend[safetensors]'"
        raise ImportError(complain("safetensors files", f"no package safetensors ({error})", "it", wanted)) from error
    return safetensors
