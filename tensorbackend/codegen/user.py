# SPDX-License-Identifier: Apache-2.0
"""User kernels as C: the user's text in loops whose names cannot meet the user's.

All names made here begin with `tb_`. `#line` gives the user's text lines of its own, so that a compiler's message names
them. Mathematical functions are those of `kernels/c`, chosen by the type of the argument.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.render import ctype
from tensorbackend.user_kernels import Elementwise, Parameter, Reduction

__all__ = ["CHUNK", "SEGMENT", "UserSource", "print_elementwise", "print_reduction"]

CHUNK = 1 << 14
"""Elements of a task."""
SEGMENT = 1 << 14
"""Elements along the reduced axes that one partial result covers."""
BLOCK = 128
"""Elements that are combined one by one; their results are combined in pairs, which keeps sums accurate."""

_ONE = ("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "floor", "ceil", "tanh", "sin", "cos", "tan", "asin", "acos",
        "atan", "sinh", "cosh", "erf", "erfc")  # fmt: skip
_ROUND = "static inline {c} tb_user_round_{t}({c} x) {{ const {c} t = tb_trunc_{t}(x), d = tb_abs_{t}(x - t); "\
         "return d >= ({c})0.5 ? (x < 0 ? t - 1 : t + 1) : t; }}"  # fmt: skip


def _chosen(arguments: str, text: str) -> str:
    """A macro's value by the type of its arguments; `text` with S for the tag, and each argument cast."""
    names = arguments.split(", ")
    forms = []
    for kind, tag, c in (("float", "f32", "float"), ("default", "f64", "double")):
        cast = ", ".join(f"({c})({name})" for name in names)
        forms.append(f"{kind}: {text.replace('S', tag)}({cast})")
    return f"_Generic({' + '.join(f'({name})' for name in names)}, {', '.join(forms)})"


FUNCTIONS = {
    **{name: ("tb_x", _chosen("tb_x", f"tb_{name}_S")) for name in _ONE},
    "fabs": ("tb_x", _chosen("tb_x", "tb_abs_S")),
    "round": ("tb_x", _chosen("tb_x", "tb_user_round_S")),
    **{name: ("tb_x, tb_y", _chosen("tb_x, tb_y", f"tb_{name}_S")) for name in ("pow", "atan2", "fmod")},
    "fma": ("tb_x, tb_y, tb_z", _chosen("tb_x, tb_y, tb_z", "TB_FMA_S").replace("FMA_f", "FMA_F")),
    "isnan": ("tb_x", "((tb_x) != (tb_x))"),
    "isinf": ("tb_x", "(tb_abs_f64((double)(tb_x)) == TB_INF_F64)"),
}
_CHOICES = {"max": ">", "min": "<"}


@dataclass(frozen=True)
class UserSource:
    """The text of a user kernel, its function's name, and that of a reduction's second stage (`join`)."""

    source: str
    name: str
    join: str = ""


def _compute_type(dtype: np.dtype) -> str:
    return "_Bool" if dtype == dtypes.BOOL else ctype(dtypes.compute(dtype))


def _stored(dtype: np.dtype) -> str:
    return "_Bool" if dtype == dtypes.BOOL else ctype(dtype)


def _read(dtype: np.dtype, place: str) -> str:
    return f"tb_{dtypes.tag(dtype)}_to_f32({place})" if dtypes.is_half(dtype) else place


def _write(dtype: np.dtype, value: str) -> str:
    return f"tb_f32_to_{dtypes.tag(dtype)}({value})" if dtypes.is_half(dtype) else value


def _signature() -> str:
    return (
        "void KERNEL(void *const *tb_ptr, const tb_i64 *tb_size, const tb_i64 *tb_stride, const tb_i64 *tb_scalar, "
        "tb_i64 tb_begin, tb_i64 tb_end)"
    )


def _head(texts: Sequence[str], preamble: str, bound: dict[str, np.dtype], name: str) -> Iterator[str]:
    """Types and functions that the user's text may name, then the preamble."""
    words = set(re.findall(r"\w+", " ".join([*texts, preamble])))
    yield '#include "kernel.h"'
    yield from (f"typedef {_compute_type(dtype)} {letter};" for letter, dtype in sorted(bound.items()))
    for dtype in dtypes.DTYPES:
        if dtype.name in words and dtype != dtypes.BOOL:
            yield f"typedef {_compute_type(dtype)} {dtype.name};"
    values = {"bool": "_Bool", "true": "1", "false": "0", "INFINITY": "__builtin_inff()", "NAN": '__builtin_nanf("")'}
    values |= {"size_t": "unsigned long", "ptrdiff_t": "long"}
    yield from (f"#define {word} {value}" for word, value in values.items() if word in words)
    if "round" in words:
        yield from (_ROUND.format(c=c, t=t) for c, t in (("float", "f32"), ("double", "f64")))
    for word in sorted(words & (FUNCTIONS.keys() | _CHOICES.keys() | {"abs"})):
        if not re.search(rf"#\s*define\s+{word}\b|\b{word}\s*\([^;{{}}]*\)\s*\{{", preamble):
            yield _macro(word)
    if preamble.strip():
        yield from (f'#line 1 "{name} (preamble)"', preamble)


def _macro(word: str) -> str:
    if word in FUNCTIONS:
        arguments, value = FUNCTIONS[word]
        return f"#define {word}({arguments}) {value}"
    if word == "abs":
        forms = "float: tb_abs_f32((float)(tb_x)), double: tb_abs_f64((double)(tb_x))"
        return f"#define abs(tb_x) _Generic((tb_x), {forms}, default: (tb_x) < 0 ? -(tb_x) : (tb_x))"
    whole = f"(tb_x) {_CHOICES[word]} (tb_y) ? (tb_x) : (tb_y)"
    forms = ", ".join(f"{c}: tb_{word}_{t}(({c})(tb_x), ({c})(tb_y))" for c, t in (("float", "f32"), ("double", "f64")))
    return f"#define {word}(tb_x, tb_y) _Generic((tb_x) + (tb_y), {forms}, default: {whole})"


def _placed(text: str, count: str) -> str:
    return re.sub(r"\b_ind\s*\.\s*size\s*\(\s*\)", count, text)


def _quoted(text: str, label: str) -> list[str]:
    return [f'#line 1 "{label}"', text, '#line 1 "generated"']


def _finished(lines: list[str], join: bool = False) -> UserSource:
    source = "\n".join(lines) + "\n"
    name = "tb_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    return UserSource(source.replace("KERNEL", name), name, f"{name}_join" if join else "")


def _scalars(parameters: Sequence[Parameter], types: Sequence[np.dtype], is_number: Sequence[bool]) -> list[str]:
    lines, k = [], 0
    for p, dtype, number in zip(parameters, types, is_number):
        if number:
            kind = "double" if dtypes.is_float(dtype) else "tb_i64"
            c = _compute_type(dtype)
            lines.append(f"    const {c} {p.name} = ({c})tb_word_{kind}(tb_scalar[{k}]); (void){p.name};")
            k += 1
    return lines


def print_elementwise(
    kernel: Elementwise,
    bound: dict[str, np.dtype],
    types: Sequence[np.dtype],
    is_number: Sequence[bool],
    units: Sequence[tuple[str, int]],
    rank: int,
) -> UserSource:
    """The kernel for parameters of `types`, of which `is_number` says which are numbers, over `rank` axes.

    `units` has for each array that is walked its name and its stride along the last axis if that is 0 or 1, else -1.
    The host passes pointers (walked arrays, then whole ones), sizes (the lengths, the elements of the space) and the
    strides of the walked arrays.
    """
    kinds = {p.name: (p, dtype) for p, dtype in zip(kernel.parameters, types)}
    whole = [p for p, number in zip(kernel.parameters, is_number) if p.whole and not number]
    lines = [*_head([kernel.body], kernel.preamble, bound, kernel.name), _signature() + " {"]
    lines += _scalars(kernel.parameters, types, is_number)
    for k, (name, _) in enumerate(units):
        p, dtype = kinds[name]
        lines.append(f"    {'' if p.written else 'const '}{_stored(dtype)} *const tb_p_{name} = tb_ptr[{k}];")
    for k, p in enumerate(whole, start=len(units)):
        c = _compute_type(kinds[p.name][1])
        lines.append(f"    {'' if p.written else 'const '}{c} *const {p.name} = tb_ptr[{k}]; (void){p.name};")
    lines.append(f"    const tb_i64 tb_n = tb_size[{rank}], tb_inner = tb_size[{rank - 1}];")
    if not kernel.pointer or "n" not in kinds:
        lines.append("    const tb_i64 n = tb_n; (void)n;")
    lines += ["    for (tb_i64 tb_task = tb_begin; tb_task < tb_end; ++tb_task) {"]
    lines.append(f"    tb_i64 tb_flat = tb_task * {CHUNK}; const tb_i64 tb_stop = tb_flat + {CHUNK} < tb_n ? "
                 f"tb_flat + {CHUNK} : tb_n;")  # fmt: skip
    lines += ["    while (tb_flat < tb_stop) {", "    const tb_i64 tb_from = tb_flat % tb_inner;"]
    lines.append("    const tb_i64 tb_count = tb_inner - tb_from < tb_stop - tb_flat ? tb_inner - tb_from : tb_stop - "
                 "tb_flat;")  # fmt: skip
    lines += _row([name for name, _ in units], rank, "tb_flat / tb_inner")
    if not whole:
        lines.append("#pragma GCC ivdep")
    lines += ["    for (tb_i64 tb_j = 0; tb_j < tb_count; ++tb_j) {", "    const tb_i64 i = tb_flat + tb_j; (void)i;"]
    after = []
    for k, (name, unit) in enumerate(units):
        p, dtype = kinds[name]
        step = {0: "0", 1: "(tb_from + tb_j)"}.get(unit, f"(tb_from + tb_j) * tb_stride[{k * rank + rank - 1}]")
        place = f"tb_q_{name}[{step}]"
        lines.append(f"    {'' if p.written else 'const '}{_compute_type(dtype)} {name} = {_read(dtype, place)};")
        lines.append(f"    (void){name};")
        if p.written:
            after.append(f"    {place} = {_write(dtype, name)};")
    lines += ["    do {", *_quoted(_placed(kernel.body, "(tb_n)     "), kernel.name), "    } while (0);", *after]
    return _finished([*lines, "    }", "    tb_flat += tb_count;", "    }", "    }", "}"])


def _row(names: Sequence[str], rank: int, row: str) -> list[str]:
    """The addresses of a row of the space, from its number."""
    lines = [f"    tb_i64 tb_rest = {row}; (void)tb_rest;"]
    lines += [f"    tb_i64 tb_o_{name} = 0;" for name in names]
    for axis in reversed(range(rank - 1)):
        moves = " ".join(f"tb_o_{name} += tb_x * tb_stride[{k * rank + axis}];" for k, name in enumerate(names))
        lines.append(f"    {{ const tb_i64 tb_x = tb_rest % tb_size[{axis}]; tb_rest /= tb_size[{axis}]; {moves} }}")
    return lines + [f"    __typeof__(tb_p_{name}) tb_q_{name} = tb_p_{name} + tb_o_{name};" for name in names]


def print_reduction(
    kernel: Reduction,
    bound: dict[str, np.dtype],
    types: Sequence[np.dtype],
    is_number: Sequence[bool],
    kept: int,
    reduced: int,
) -> UserSource:
    """The reduction over spaces of `kept` and of `reduced` axes, as two functions: partial results, and their join.

    The host passes pointers (arrays, the output, scratch), sizes (kept lengths, reduced lengths, the elements of each,
    segments), and the strides of the arrays along all axes, then the output's along the kept ones.
    """
    rank, inner = kept + reduced, kept + reduced - 1
    out, out_type = kernel.outputs[0], types[-1]
    c = _compute_type(out_type)
    arrays = [(p, d) for p, d, number in zip(kernel.inputs, types, is_number) if not number]
    sizes = [f"    const tb_i64 tb_n = tb_size[{rank + 1}], tb_segments = tb_size[{rank + 2}];",
             "    (void)tb_n; (void)tb_segments;",
             *_scalars(kernel.inputs, types, is_number)]  # fmt: skip
    texts = [kernel.map, kernel.reduce, kernel.post, kernel.identity]
    lines = [*_head(texts, kernel.preamble, bound, kernel.name)]
    lines += [f"static inline {c} tb_both(const {c} a, const {c} b) {{ return", *_quoted(kernel.reduce, kernel.name)]
    lines += [
        ";",
        "}",
        f"static inline {c} tb_identity(void) {{ return",
        *_quoted(kernel.identity, kernel.name),
        ";",
        "}",
    ]
    push = "{ int tb_l = 0; for (; tb_k >> tb_l & 1; ++tb_l) tb_v = tb_both(tb_part[tb_l], tb_v); "\
           "tb_part[tb_l] = tb_v; ++tb_k; }"  # fmt: skip
    total = "int tb_any = 0; for (int tb_l = 0; tb_l < 48; ++tb_l) if (tb_k >> tb_l & 1) { tb_all = tb_any ? "\
            "tb_both(tb_part[tb_l], tb_all) : tb_part[tb_l]; tb_any = 1; }"  # fmt: skip
    lines += [_signature() + " {", *sizes]
    for k, (p, dtype) in enumerate(arrays):
        lines.append(f"    const {_stored(dtype)} *const tb_p_{p.name} = tb_ptr[{k}];")
    lines += [f"    {c} *const tb_scratch = tb_ptr[{len(arrays) + 1}];"]
    lines += ["    for (tb_i64 tb_task = tb_begin; tb_task < tb_end; ++tb_task) {"]
    lines += [f"    tb_i64 tb_flat = tb_task % tb_segments * {SEGMENT};",
              f"    const tb_i64 tb_stop = tb_flat + {SEGMENT} < tb_n ? tb_flat + {SEGMENT} : tb_n;",
              f"    const tb_i64 tb_inner = tb_size[{inner}];",
              f"    {c} tb_part[48]; tb_i64 tb_k = 0; {c} tb_all = tb_identity();",
              "    while (tb_flat < tb_stop) {", "    const tb_i64 tb_from = tb_flat % tb_inner;",
              "    tb_i64 tb_count = tb_inner - tb_from < tb_stop - tb_flat ? tb_inner - tb_from : tb_stop - tb_flat;",
              f"    if (tb_count > {BLOCK}) tb_count = {BLOCK};"]  # fmt: skip
    names = [p.name for p, _ in arrays]
    lines += _row(names, rank, "tb_task / tb_segments * (tb_n / tb_inner) + tb_flat / tb_inner")
    lines += [f"    {c} tb_v = tb_identity();", "    for (tb_i64 tb_j = 0; tb_j < tb_count; ++tb_j) {"]
    for k, (p, dtype) in enumerate(arrays):
        place = f"tb_q_{p.name}[(tb_from + tb_j) * tb_stride[{k * rank + inner}]]"
        lines.append(f"    const {_compute_type(dtype)} {p.name} = {_read(dtype, place)}; (void){p.name};")
    lines += [
        f"    const {c} tb_m =",
        *_quoted(kernel.map, kernel.name),
        ";",
        "    tb_v = tb_j ? tb_both(tb_v, tb_m) : tb_m;",
    ]
    lines += ["    }", f"    {push}", "    tb_flat += tb_count;", "    }", f"    {total}"]
    lines += ["    tb_scratch[tb_task] = tb_all;", "    }", "}"]
    lines += [_signature().replace("KERNEL", "KERNEL_join") + " {", *sizes]
    lines += [f"    {_stored(out_type)} *const tb_p_{out.name} = tb_ptr[{len(arrays)}];"]
    lines += [f"    const {c} *const tb_scratch = tb_ptr[{len(arrays) + 1}];"]
    lines += ["    for (tb_i64 tb_task = tb_begin; tb_task < tb_end; ++tb_task) {"]
    lines += [f"    {c} tb_part[48]; tb_i64 tb_k = 0; {c} tb_all = tb_identity();",
              f"    for (tb_i64 tb_s = 0; tb_s < tb_segments; ++tb_s) {{ {c} tb_v = tb_scratch[tb_task * tb_segments + "
              f"tb_s]; {push} }}", f"    {total}", f"    const {c} a = tb_all; (void)a;",
              "    tb_i64 tb_rest = tb_task;",
              f"    tb_i64 tb_o = 0; {c} {out.name} = 0;"]  # fmt: skip
    for axis in reversed(range(kept)):
        step = f"tb_stride[{len(arrays) * rank + axis}]"
        lines.append(f"    tb_o += tb_rest % tb_size[{axis}] * {step}; tb_rest /= tb_size[{axis}];")
    lines += ["    do {", *_quoted(_placed(kernel.post, "(tb_n)     "), kernel.name), "    } while (0);"]
    lines += [f"    tb_p_{out.name}[tb_o] = {_write(out_type, out.name)};", "    }", "}"]
    return _finished(lines, join=True)
