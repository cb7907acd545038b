# SPDX-License-Identifier: Apache-2.0
"""Saving links and optimizers as NumPy's npz files, and loading them. No pickle is written or read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensorbackend.errors import complain
from tensorbackend.function import arrays

__all__ = ["DictionarySerializer", "NpzDeserializer", "RandomState", "load_npz", "save_npz", "write_npz"]


class DictionarySerializer:
    """Collects arrays in a dictionary, `target`, under paths such as 'l1/W'."""

    def __init__(self, target: dict[str, Any] | None = None, path: str = "") -> None:
        self.target = {} if target is None else target
        self.path = path

    def __getitem__(self, name: str) -> DictionarySerializer:
        """The serializer of a part."""
        return DictionarySerializer(self.target, f"{self.path}{name}/")

    def __call__(self, key: str, value: Any) -> Any:
        """Store a value: an array, a number, or None for what is not there yet. Returns it."""
        stored = np.zeros(0, np.float32) if value is None else value
        host = arrays.to_cpu(stored) if arrays.is_array(stored) else np.asarray(stored)
        if host.dtype == object:
            given = f"{self.path}{key}: {type(value).__name__}"
            raise TypeError(complain("serializer: a value that is no array", given, "arrays and numbers"))
        path = f"{self.path}{key}"
        self.target[path] = host
        if value is None:
            self.target[f"{path}{_ABSENT}"] = np.asarray(True)
        return value

    def save(self, thing: Any) -> dict[str, Any]:
        """Collect a link or an optimizer. Returns the dictionary."""
        thing.serialize(self)
        return self.target


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
        self._ignored: Iterable[Any] = (names,) if isinstance(names, str) or callable(names) else tuple(names)

    def __getitem__(self, name: str) -> NpzDeserializer:
        """The deserializer of a part."""
        return NpzDeserializer(self.npz, f"{self.path}{name}/", self.strict, self._ignored)

    def _ignores(self, key: str) -> bool:
        return any(name(key) if callable(name) else name == key for name in self._ignored)

    def __call__(self, key: str, value: Any) -> Any:
        """Load a value: into an array in place, which keeps device and type; a number is returned."""
        path = f"{self.path}{key}"
        if self._ignores(path):
            return value
        if path not in self.npz:
            if self.strict:
                raise KeyError(complain("load: a missing key", repr(path), "a file of the same model", "strict=False"))
            return value
        if f"{path}{_ABSENT}" in self.npz:
            return None
        found = self.npz[path]
        if value is None:
            return found
        if not arrays.is_array(value):
            return type(value)(found.item())
        if found.shape != value.shape:
            raise ValueError(complain(f"load: {path}", f"shape {found.shape}", f"shape {value.shape}"))
        arrays.copy_into(arrays.plain(value), found)
        return value

    def load(self, thing: Any) -> None:
        """Load a link or an optimizer."""
        thing.serialize(self)


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
    any moment a whole file, this one or the one before."""
    target = DictionarySerializer().save(obj)
    if hasattr(file, "write"):
        (np.savez_compressed if compression else np.savez)(file, **target)
    else:
        write_npz(file, target, compression)


def write_npz(path: Any, arrays: Mapping[str, np.ndarray], compression: bool = True) -> None:
    """Write arrays by name as an .npz, beside its place and then into it: whoever is killed, what is there is whole.

    Raises `OSError` where the folder cannot be written.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            (np.savez_compressed if compression else np.savez)(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load_npz(file: Any, obj: Any, path: str = "", strict: bool = True, ignore_names: Any = None) -> None:
    """Load a link or an optimizer from a file of `save_npz`; `path` is where it is inside. Raises `KeyError` for what
    is missing, if `strict`."""
    with np.load(file, allow_pickle=False) as npz:
        NpzDeserializer(npz, path, strict, ignore_names).load(obj)
