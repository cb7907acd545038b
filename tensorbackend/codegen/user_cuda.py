# SPDX-License-Identifier: Apache-2.0
"""User kernels as CUDA C++: the same user's text as in C, in loops for blocks of threads.

Elementwise, threads walk (row, inner) by grid strides. In a reduction a block makes one result, or a segment of it, its
threads folding neighbours in their order; or, where there are many results side by side, each thread makes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensorbackend.codegen.geometry import THREADS
from tensorbackend.codegen.user import FUNCTIONS, UserPrinter
from tensorbackend.user_kernels import Elementwise, Reduction, blanked

__all__ = ["CudaPrinter", "argument_counts"]

BLANKED = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*""",
                     re.DOTALL | re.MULTILINE)  # fmt: skip
"""What is no declaration: strings, characters, comments, directives."""
ATTRIBUTES = (r"(?:\s*(?:(?:alignas|__align__|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
              r"|\[\[.*?\]\]))*")  # fmt: skip
ELSEWHERE = re.compile(r"(?:typedef|using|extern|namespace)\b"
                       r"|(?:struct|union|class|enum(?:\s+(?:class|struct))?)\b" + ATTRIBUTES
                       + r"\s*[\w:]*(?:\s+final)?\s*[{:;]")  # fmt: skip
"""Declarations that are for no side, and end with a semicolon."""
TEMPLATE = re.compile(r"template\s*<(?:[^<>]|<[^<>]*>)*>\s*")
"""What stands before a declaration, and before what it says of its side."""
SAID = re.compile(
    r"(?:(?:static|inline|const|extern|__host__|__forceinline__|__noinline__)\s+)*__(?:device|constant)__\b"
)
"""Declarations that say for which side they are."""
MEMBERS = {"x", "y", "z", "w"}
"""What follows a dot in CUDA's own names: `blockIdx.x`."""


def argument_counts(pointers: int, sizes: int, strides: int, scalars: int) -> tuple[int, int, int, int]:
    """The words of each part of a kernel's arguments; no part is empty."""
    return max(pointers, 1), max(sizes, 1), max(strides, 1), max(scalars, 1)


class CudaPrinter(UserPrinter):
    """CUDA C++."""

    header = "user.cuh"
    boolean = "bool"

    @property
    def lengths_at(self) -> int:
        return self.form.rank + (4 if isinstance(self.spec, Reduction) else 1)

    def _asserted(self, condition: str, message: str, value: str) -> str:
        return f'([&] {{ static_assert({condition}, "{message}"); return {value}; }}())'

    def _names(self) -> dict[str, str]:
        return {"ptrdiff_t": "tb_i64"}

    def _functions(self, words: set[str], own: set[str]) -> Iterator[str]:
        for word in sorted(words & FUNCTIONS.keys()):
            yield f"#define {word}(...) tb_user_{word}(__VA_ARGS__)"
        text = blanked("\n".join([self.spec.preamble, *self._texts().values()]))
        for word in sorted(own):  # CUDA has functions of many names already
            if word not in MEMBERS and re.search(rf"\b{word}\b(?!\s*\()", text):  # its address, or another's name
                yield f"#define {word} tb_own_{word}"
            else:
                yield f"#define {word}(...) tb_own_{word}(__VA_ARGS__)"

    def _declared(self, preamble: str) -> str:
        """The preamble with its functions and variables for the device."""
        plain = BLANKED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), preamble)
        starts, depth, ends = [], 0, ";}"
        fresh = True
        for at, letter in enumerate(plain):
            if fresh and not letter.isspace() and letter != ";":
                fresh = False
                template = TEMPLATE.match(plain, at)
                start = template.end() if template else at
                ends = ";" if ELSEWHERE.match(plain, start) else ";}"
                starts += [start] * (ends == ";}" and not SAID.match(plain, start))
            depth += (letter == "{") - (letter == "}")
            fresh = fresh or (depth == 0 and letter in ends)
        for at in reversed(starts):
            preamble = f"{preamble[:at]}__device__ {preamble[at:]}"
        return preamble

    def _open(self, name: str) -> None:
        """A kernel's head; what is ours of the built-in variables is read before the user's names come."""
        form, reduces = self.form, isinstance(self.spec, Reduction)
        sizes = self.lengths_at + sum(rank - 1 for _, rank in form.ranks)
        strides = len(form.units) * form.rank + form.kept
        pointers = len(self.walked) + len(self.whole) + reduces + form.split
        ptr, size, stride, scalar = argument_counts(pointers, sizes, strides, len(self.numbers))
        fields = f"void *ptr[{ptr}]; tb_i64 size[{size}], stride[{stride}], scalar[{scalar}];"
        self.say(f"struct {name}_args {{ {fields} }};",
                 f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(const {name}_args tb_arguments) {{',
                 *(f"const auto &tb_{field} = tb_arguments.{field}; (void)tb_{field};"
                   for field in ("ptr", "size", "stride", "scalar")))  # fmt: skip
        for axis, letter in ((0, "x"), (1, "y")):
            self.say(f"const tb_i64 tb_block{axis} = blockIdx.{letter}, tb_blocks{axis} = gridDim.{letter};",
                     f"const tb_i64 tb_team{axis} = blockDim.{letter}, tb_thread{axis} = threadIdx.{letter};",
                     f"(void)tb_block{axis}; (void)tb_blocks{axis}; (void)tb_team{axis}; (void)tb_thread{axis};"
                     )  # fmt: skip
        self._scalars()
        self._pointers()

    def _elementwise(self, spec: Elementwise) -> None:
        rank = self.form.rank
        self._open("KERNEL")
        self.say(f"const tb_i64 tb_n = tb_size[{rank}], tb_inner = tb_size[{rank - 1}], tb_rows = tb_n / tb_inner;")
        if "n" not in self.types:
            self.say("const tb_i64 n = tb_n; (void)n;")
        self.say("for (tb_i64 tb_row = tb_block1 * tb_team1 + tb_thread1; tb_row < tb_rows; "
                 "tb_row += tb_blocks1 * tb_team1) {")  # fmt: skip
        self._offsets(range(rank - 1), "tb_row")
        self.say("for (tb_i64 tb_j = tb_block0 * tb_team0 + tb_thread0; tb_j < tb_inner; "
                 "tb_j += tb_blocks0 * tb_team0) {")  # fmt: skip
        places = self._places(rank - 1, "tb_j")
        self._element(places)
        self._body(spec.body, spec.name)
        for p, _, _ in self.walked:
            if p.written:
                self._store(p, places[p.name])
        self.say("}", "}", "}")

    def _reduction(self, spec: Reduction) -> None:
        self._reduction_functions(spec, "static __device__ __forceinline__")
        c = self.value_type
        self.say(f"struct tb_both_of {{ __device__ {c} operator()({c} tb_x, {c} tb_y) const "
                 "{ return tb_both(tb_x, tb_y); } };")  # fmt: skip
        self._open("KERNEL")
        self._outputs(spec)
        self._reduction_sizes()
        (self._columns if self.form.columns else self._rows)(spec)
        self.say("}")
        if self.form.split:
            self._join(spec)

    def _rows(self, spec: Reduction) -> None:
        self.say("for (tb_i64 tb_task = tb_block0; tb_task < tb_rows * tb_segments; tb_task += tb_blocks0) {",
                 "const tb_i64 tb_row = tb_task / tb_segments;")  # fmt: skip
        self._load(spec, "tb_task % tb_segments")
        self.say(f"const {self.value_type} tb_all = tb_first < tb_stop ? "
                 f"tb_user_reduce<{self.value_type}>(tb_first, tb_stop, tb_load, tb_both_of()) : tb_identity();",
                 "if (tb_thread0 == 0) {")  # fmt: skip
        self._leave(spec, "tb_all", "tb_row", "tb_task")
        self.say("}", "}")

    def _columns(self, spec: Reduction) -> None:
        self.say("for (tb_i64 tb_task = tb_block0 * tb_team0 + tb_thread0; tb_task < tb_rows * tb_segments; "
                 "tb_task += tb_blocks0 * tb_team0) {",
                 "const tb_i64 tb_row = tb_task % tb_rows;")  # fmt: skip
        self._load(spec, "tb_task / tb_rows")
        self.say(f"{self.value_type} tb_all = tb_first < tb_stop ? tb_load(tb_first) : tb_identity();",
                 "for (tb_i64 tb_k = tb_first + 1; tb_k < tb_stop; ++tb_k) tb_all = tb_both(tb_all, tb_load(tb_k));"
                 )  # fmt: skip
        self._leave(spec, "tb_all", "tb_row", "tb_row * tb_segments + tb_task / tb_rows")
        self.say("}")

    def _load(self, spec: Reduction, segment: str) -> None:
        """`tb_load(k)`: what element k of the result `tb_row` becomes; `tb_first` and `tb_stop` are its segment's."""
        self.say(f"const tb_i64 tb_first = {segment} * tb_segment;",
                 "const tb_i64 tb_stop = tb_first + tb_segment < tb_n ? tb_first + tb_segment : tb_n;")  # fmt: skip
        self._offsets(range(self.form.kept), "tb_row")
        self.say(*(f"const tb_i64 tb_r_{name} = tb_o_{name}; (void)tb_r_{name};" for name, _ in self.form.units),
                 f"const auto tb_load = [&](tb_i64 tb_k) -> {self.value_type} {{")  # fmt: skip
        self._offsets(self.reduced[:-1], f"tb_k / tb_size[{self.form.rank - 1}]", "tb_r_")
        inner = f"tb_k % tb_size[{self.form.rank - 1}]" if self.reduced[:-1] else "tb_k"
        self._mapped(spec, self._places(self.form.rank - 1, inner))
        self.say("return tb_mapped;", "};")

    def _join(self, spec: Reduction) -> None:
        """The second stage: a block for the partial results of each result."""
        c = self.value_type
        self._open("KERNEL_join")
        self._outputs(spec)
        self._reduction_sizes()
        self.say("for (tb_i64 tb_row = tb_block0; tb_row < tb_rows; tb_row += tb_blocks0) {",
                 f"const auto tb_load = [&](tb_i64 tb_k) -> {c} {{ return tb_scratch[tb_row * tb_segments + tb_k]; }};",
                 f"const {c} tb_all = tb_user_reduce<{c}>(0, tb_segments, tb_load, tb_both_of());",
                 "if (tb_thread0 == 0) {")  # fmt: skip
        self._finish(spec, "tb_all", "tb_row")
        self.say("}", "}", "}")
