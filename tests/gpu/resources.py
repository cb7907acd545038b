# SPDX-License-Identifier: Apache-2.0
"""What kernels take of a device: registers, spills and shared memory by NVRTC, which needs no device.

    python -m tests.gpu.resources                 prints the table of docs/cuda-kernels.md
    python -m tests.gpu.resources PAGE            writes it into the page, between its marks
    python -m tests.gpu.resources --all FOLDER    compiles all sources that a run of the tests left in FOLDER
                                                  (TB_TEST_SOURCES=FOLDER), for each architecture
    ... --all FOLDER --part 4                     of the printed kernels, one in 4; all for one architecture each
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tensorbackend import Backend
from tensorbackend.backends.cuda_primitives import MACROS
from tensorbackend.backends.gpu import INCLUDE, GpuBackend
from tensorbackend.backends.null import NullDriver
from tensorbackend.kernel_files import kernel_path
from tests.gpu.nvjitlink import link_cubin
from tests.gpu.nvrtc import ARCHITECTURES, Use, compile_cubin, compile_ptx, library, version

BEGIN, END = "<!-- kernels -->", "<!-- end kernels -->"
OLDEST = "compute_80"
TOGETHER = 100
"""Sources that are compiled as one: what they share is parsed once."""

FLOATS = [("float", "float", "float"), ("tb_half", "tb_half", "float"), ("double", "double", "double")]
TYPES = {
    "gemm": [(*types, tile) for types in [*FLOATS, ("tb_i8", "tb_i64", "tb_i64")] for tile in (16, 64)],
    "conv": [("float", "float", "float", 64, 64, 16, "int"), ("tb_half", "tb_half", "float", 16, 64, 16, "int"),
             ("double", "double", "double", 64, 64, 16, "int")],
    "columns": [("float", "float"), ("tb_half", "float"), ("double", "double")],
    "pool": [(op, *types) for op in range(3) for types in (
        ("float", "float", "tb_u8", "tb_sqrt_f32", "int"), ("tb_half", "float", "tb_i32", "tb_sqrt_f32", "int"),
        ("double", "double", "tb_u16", "tb_sqrt_f64", "int"))],
    "lrn": [("float", "float", "tb_log2_f32", "tb_exp2_f32"), ("tb_bfloat", "float", "tb_log2_f32", "tb_exp2_f32"),
            ("double", "double", "tb_log2_f64", "tb_exp2_f64")],
    "lookup": [("float", "tb_i32", "double"), ("tb_half", "tb_u64", "float"), ("double", "tb_i64", "double")],
    "roi": [("float", "float", "tb_i32"), ("tb_bfloat", "float", "tb_i64"), ("double", "double", "tb_i32")],
    "nms": [("float", "float"), ("tb_half", "float"), ("double", "double")],
    "take": [("float", "tb_i32", "double"), ("tb_bfloat", "tb_u64", "double"), ("tb_u16", "tb_i64", "tb_u16")],
    "cumsum": [("float", "float", "double", "float"), ("tb_u8", "tb_u64", "tb_u64", "tb_u64")],
    "histogram": [("tb_half", "float", "f32"), ("tb_i64", "double", "f64")],
}  # fmt: skip
"""The types that each file of `kernels/cuda` is compiled for."""

Row = dict[str, Use]
Table = dict[str, Row]


def adam(be: Backend, w: Any, g: Any, m: Any, v: Any) -> None:
    """A step of an optimizer: three outputs."""
    with be.fuse():
        m[:] = m * 0.9 + g * 0.1
        v[:] = v * 0.999 + g * g * 0.001
        w[:] = w - 0.001 * m / (be.sqrt(v) + 1e-8)


def layer_norm(be: Backend, x: Any) -> Any:
    """Rows of mean 0 and variance 1."""
    return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + 1e-5)


def statements(be: Backend, dtype: str) -> Iterator[tuple[str, Any]]:
    """The common expressions, by name."""
    x, y, row, column = (be.empty(s, dtype) for s in ((512, 1024), (512, 1024), (1, 1024), (512, 1)))
    yield "x * 2 + 1", x * 2 + 1
    yield "sigmoid(x * w + b) * tanh(y)", be.sig(x * row + column) * be.tanh(y)
    yield "x + x.T", x[:, :512] + x[:, :512].T
    yield "rand() < 0.5, times x", (be.rand() < 0.5) * x
    yield "softmax over rows", be.softmax(x, 1)
    yield "softmax over columns", be.softmax(x, 0)
    yield "layer norm", layer_norm(be, x)
    yield "sum of all", be.sum(x)
    yield "sum over rows", be.sum(x, axis=1)
    yield "sum over columns", be.sum(x, axis=0)
    yield "variance over columns", be.var(x, axis=0)
    yield "argmax over rows", be.argmax(x, axis=1)


def printed() -> dict[str, list[str]]:
    """The common statements: a module's source for each, and the names of its kernels, by what they compute."""
    be = GpuBackend(driver=NullDriver(), rng_seed=0)
    found = {}
    for dtype in ("float32", "bfloat16", "float64"):
        for name, tree in statements(be, dtype):
            be.evaluate(tree)
            found[f"{name}, {dtype}"] = _launched(be)
    adam(be, *(be.empty((512, 1024)) for _ in range(4)))
    found["a step of Adam, float32"] = _launched(be)
    sources = be.driver.sources
    be.cleanup_backend()
    return {"": sources, **found}


def _launched(be: GpuBackend) -> list[str]:
    names = [launch.name for launch in be.driver.launches]
    be.driver.launches.clear()
    return names


def joined(sources: Iterable[str]) -> str:
    """Printed sources as one: kernels are named by their text, and stand once."""
    bodies = dict.fromkeys(source.removeprefix(INCLUDE) for source in sources)
    return INCLUDE + "\n".join(bodies)


def printed_table(architectures: Iterable[str] = ARCHITECTURES) -> Table:
    """What the kernels of the common statements take."""
    names = printed()
    source = joined(names.pop(""))
    table: Table = {}
    for architecture in architectures:
        uses = compile_cubin(source, architecture)
        for label, kernels in names.items():
            for kernel in kernels:
                stage = ", second stage" if kernel.endswith("_join") else ""
                table.setdefault(label + stage, {})[architecture] = uses[kernel]
    return table


def written_table(file: str, architectures: Iterable[str] = ARCHITECTURES) -> Table:
    """What the kernels of a file of `kernels/cuda` take, for each of its types."""
    text = kernel_path(f"cuda/{file}.cu").read_text(encoding="utf-8")
    table: Table = {}
    for types in TYPES[file]:
        macros = tuple(f"-D{macro}={value}" for macro, value in zip(MACROS[file], types))
        for architecture in architectures:
            for kernel, use in compile_cubin(text, architecture, macros).items():
                label = f"{file}.cu: {kernel}, {' '.join(str(t).removeprefix('tb_') for t in types)}"
                table.setdefault(label, {})[architecture] = use
    return table


def spilling(table: Table) -> list[str]:
    """The kernels that spill, and where."""
    return [f"{label} on {a}: {use.spilled} bytes" for label, row in table.items() for a, use in row.items()
            if use.spilled or use.stack]  # fmt: skip


def lines(table: Table) -> list[str]:
    """The table in Markdown."""
    head = ["kernel", *(f"{a}: registers" for a in ARCHITECTURES), "spilled bytes", "shared bytes"]
    rows = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for label, row in table.items():
        uses = [row[a] for a in ARCHITECTURES]
        cells = [str(use.registers) for use in uses]
        cells += [_one_or_all([use.spilled for use in uses]), _one_or_all([use.shared for use in uses])]
        rows.append("| " + " | ".join([label, *cells]) + " |")
    return rows


def _one_or_all(numbers: list[int]) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else " / ".join(map(str, numbers))


def whole_table() -> Table:
    """All kernels of the page."""
    return {**printed_table(), **{k: v for file in TYPES for k, v in written_table(file).items()}}


# All sources of a run of the tests

_STRUCTURE = re.compile(r"^(?=struct \w+_args \{)", re.MULTILINE)
_COMMENT = re.compile(r"^//.*\n", re.MULTILINE)


def groups(sources: Iterable[str], part: int = 1) -> Iterator[tuple[str, int]]:
    """Sources to compile and how many kernels each has at least: printed kernels (one in `part`, chosen by their text)
    many together and once each, other sources by themselves."""
    kernels: dict[str, None] = {}
    for source in dict.fromkeys(sources):
        first, *others = _STRUCTURE.split(_COMMENT.sub("", source))  # a kernel's name comes before its structure
        if first.strip() == INCLUDE.strip():
            kernels.update(dict.fromkeys(f"{text.strip()}\n" for text in others))
        else:
            yield source, 1
    texts = [text for text in kernels if zlib.crc32(text.encode()) % part == 0]
    for first in range(0, len(texts), TOGETHER):
        chosen = texts[first : first + TOGETHER]
        yield INCLUDE + "".join(chosen), len(chosen)


def compile_all(folder: Path, part: int) -> str:
    """Compile the sources in a folder; says how much that was. If `part` is 1, everything for each architecture, else
    hand-written sources and one in `part` of the printed kernels, for the architectures by turns."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.cu"))]
    work = []
    for number, (source, kernels) in enumerate(groups(sources, part)):
        work.append((source, kernels, ARCHITECTURES[number % len(ARCHITECTURES) :][:1] if part > 1 else ARCHITECTURES))
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(_compile_group, work))
    count, spilled = (sum(numbers) for numbers in zip(*found))
    chosen, each = (f", one in {part} of the printed ones,", "one of ") if part > 1 else ("", "")
    where = each + ", ".join(ARCHITECTURES)
    return f"{count} kernels of {len(sources)} sources{chosen} compile for {where}; {spilled} spill"


def _compile_group(asked: tuple[str, int, Iterable[str]]) -> tuple[int, int]:
    """The kernels of a source compiled for some architectures from one PTX, and how many of them spill.

    No source looks at the architecture: what NVRTC makes of it differs in the last step alone.
    """
    source, kernels, architectures = asked
    ptx = compile_ptx(source, OLDEST)
    found = [use for architecture in architectures for use in _all_of(link_cubin(ptx, architecture), kernels, source)]
    return len(found), sum(bool(use.spilled) for use in found)


def _all_of(uses: Row, kernels: int, source: str) -> Iterable[Use]:
    assert len(uses) >= kernels, source
    return uses.values()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", nargs="?", type=Path)
    parser.add_argument("--all", type=Path, metavar="FOLDER")
    parser.add_argument("--part", type=int, default=1, metavar="N")
    chosen = parser.parse_args()
    if library() is None:
        parser.error("NVRTC is not installed: pip install 'tensorbackend[cuda-check]'")
    if chosen.all is not None:
        print(compile_all(chosen.all, chosen.part))
        return
    text = "\n".join([BEGIN, f"NVRTC {version()}.", "", *lines(whole_table()), END])
    if chosen.page is None:
        print(text)
        return
    page = chosen.page.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    chosen.page.write_text(before + text + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
