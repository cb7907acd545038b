# SPDX-License-Identifier: Apache-2.0
"""A driver that runs nothing: it records launches and checks each against what a device can have and what memory holds.

`GpuBackend(driver=NullDriver())` prints and packs as for a device. Tests look at `launches` and `sources`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorbackend.backends.driver import DeviceFacts, Function, HostDriver, Module, Triple
from tensorbackend.codegen.geometry import SIZES

__all__ = ["Launch", "NullDriver"]

_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\((\d+)[^)]*\) )?(\w+)\(const (\w+) ')
_STRUCTURE = re.compile(r"^(?=struct \w+_args \{)", re.MULTILINE)
_FIELDS = re.compile(
    r"struct (\w+)_args \{ void \*ptr\[(\d+)\]; tb_i64 size\[(\d+)\], stride\[(\d+)\], scalar\[(\d+)\]; \};"
)
_SLOT = re.compile(r"\b([io]\d+) = \([^)]*\)ptr\[(\d+)\]")
_PACK = re.compile(r"tb_pack<(\w+), (\d+)> ([pq])(\d+);")
_BYTES = {"float": 4, "double": 8, "bool": 1, **{f"tb_{s}{8 * n}": n for s in "iu" for n in (1, 2, 4, 8)}}
ARGUMENT_BYTES = 32764
FIRST_ADDRESS = 1 << 20


@dataclass(frozen=True)
class Launch:
    """What was launched: the kernel's `name`, `grid`, `block`, bytes of `shared` memory, and the `arguments`."""

    name: str
    grid: Triple
    block: Triple
    shared: int
    arguments: bytes


@dataclass(frozen=True)
class _Layout:
    """The arguments of a printed kernel: how many `pointers`, `nbytes` in all, at which byte it is told whether packs
    are whole (`vector`), and the bytes to which that aligns some pointers (`grains`, by their number)."""

    pointers: int
    nbytes: int
    vector: int
    grains: dict[int, int]


def _layouts(source: str) -> Iterator[tuple[str, _Layout]]:
    for text in _STRUCTURE.split(source):
        found = _FIELDS.match(text)
        if found is not None:
            pointers, sizes, strides, scalars = map(int, found.groups()[1:])
            slots = {name: int(number) for name, number in _SLOT.findall(text)}
            packs = [(slots["io"["pq".index(kind)] + n], _BYTES[t] * int(w)) for t, w, kind, n in _PACK.findall(text)]
            vector = 8 * (pointers + sizes - len(SIZES) + SIZES.index("vector"))
            yield found[1], _Layout(pointers, 8 * (pointers + sizes + strides + scalars), vector, dict(packs))


class _NullModule(Module):
    def __init__(self, source: str) -> None:
        self._threads = {name: int(bound or 1024) for bound, name, _ in _KERNEL.findall(source)}
        self._layouts = dict(_layouts(source))

    def function(self, name: str) -> Function:
        return Function(name, self._layouts.get(name), self._threads[name])


class NullDriver(HostDriver):
    """Memory that is only counted, launches that are only checked and kept (`launches`), and their text (`sources`)."""

    name = "null"

    def __init__(self, multiprocessors: int = 132) -> None:
        self.facts = DeviceFacts("null", multiprocessors, 1024, 227 << 10, (9, 0), 80 << 30, emulated=True)
        self.launches: list[Launch] = []
        self.sources: list[str] = []
        self._live: dict[int, int] = {}
        self._next = FIRST_ADDRESS

    def allocate(self, nbytes: int) -> int:
        """As `Driver.allocate`, at addresses that no memory has."""
        address = self._next
        self._next += -(-max(nbytes, 1) // 256) * 256
        self._live[address] = nbytes
        return address

    def free(self, address: int) -> None:
        """As `Driver.free`. Raises `KeyError` for what is not allocated."""
        del self._live[address]

    def upload(self, address: int, host: np.ndarray, wait: bool = True) -> None:
        """Check the range."""
        self._check(address, host.nbytes)

    def download(self, host: np.ndarray, address: int, wait: bool = True) -> None:
        """Zeros."""
        self._check(address, host.nbytes)
        host[...] = 0

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Check the ranges."""
        self._check(to, nbytes)
        self._check(source, nbytes)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Check the range."""
        self._check(address, nbytes)

    def _check(self, address: int, nbytes: int) -> None:
        inside = any(start <= address and address + nbytes <= start + size for start, size in self._live.items())
        assert inside or not nbytes, f"{nbytes} bytes at {address:#x} are in no allocation"

    def compile(self, source: str, name: str = "kernels.cu", options: Sequence[str] = ()) -> Module:
        """Keep the source."""
        self.sources.append(source)
        return _NullModule(source)

    def _launch(self, function: Function, grid: Triple, block: Triple, shared: int, arguments: bytes) -> None:
        assert len(arguments) <= ARGUMENT_BYTES, f"{function.name}: {len(arguments)} bytes of arguments"
        if function.handle is not None:
            self._check_arguments(function.name, function.handle, arguments)
        self.launches.append(Launch(function.name, grid, block, shared, arguments))

    def _check_arguments(self, name: str, layout: _Layout, arguments: bytes) -> None:
        assert len(arguments) == layout.nbytes, f"{name}: {len(arguments)} bytes for a structure of {layout.nbytes}"
        addresses = np.frombuffer(arguments, np.uint64, layout.pointers).tolist()
        for address in addresses:
            self._check(address, 1)
        if int.from_bytes(arguments[layout.vector : layout.vector + 8], "little"):
            for number, grain in layout.grains.items():
                assert addresses[number] % grain == 0, f"{name}: {addresses[number]:#x} is no multiple of {grain}"

    def memory(self) -> tuple[int, int]:
        """As if nothing were used."""
        return self.facts.memory, self.facts.memory

    def close(self) -> None:
        """Forget what was allocated."""
        self._live.clear()
