# SPDX-License-Identifier: Apache-2.0
"""User kernels as C: the user's text in loops whose names cannot meet the user's.

All names made here begin with `tb_`. `#line` gives the user's text lines of its own, so that a compiler's message names
them. Mathematical functions are those of `kernels/c`, chosen by the type of the argument. `UserPrinter` is what the
dialects share; CUDA's loops are in `codegen/user_cuda.py`.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.render import ctype
from tensorbackend.errors import complain
from tensorbackend.user_kernels import KEYWORDS, Elementwise, Parameter, Reduction, blanked

__all__ = ["BLOCK", "CHUNK", "POSITION", "RUN", "SEGMENT", "STRIP", "CPrinter", "Form", "UserPrinter", "UserSource",
           "indexed_by_arrays", "names_position"]  # fmt: skip

CHUNK = 1 << 14
"""Elements of a task."""
SEGMENT = 1 << 14
"""Elements along the reduced axes that one partial result covers; a multiple of `BLOCK`."""
BLOCK = 1024
"""Elements that are combined in pairs at a time."""
STRIP = 512
"""Neighbouring results that a task computes together where they lie side by side in memory."""
RUN = 64
"""Elements of a strip's column that are combined one by one."""

Array = tuple[Parameter, np.dtype, tuple[int, ...]]
"""A walked array: its parameter, its type, and along each axis its stride if that is 0 or 1, else -1."""


@dataclass(frozen=True)
class Form:
    """What the text of a kernel depends on: the types of placeholders (`bound`) and of parameters (`types`), which of
    those are numbers, the stride classes of walked arrays by name (`units`: 0, 1, or -1 for any) along `rank` axes.

    A reduction has `kept` axes before the reduced ones. `columns`: neighbouring results are computed together; `split`:
    the elements of a result are divided into segments, which a second function joins. `ranks` are the numbers of axes
    of whole arrays that are indexed by arrays of places, by name.
    """

    bound: tuple[tuple[str, np.dtype], ...]
    types: tuple[np.dtype, ...]
    is_number: tuple[bool, ...]
    units: tuple[tuple[str, tuple[int, ...]], ...]
    rank: int
    kept: int = 0
    columns: bool = False
    split: bool = False
    ranks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class UserSource:
    """The text of a user kernel, its function's name, and that of a split reduction's second stage (`join`)."""

    source: str
    name: str
    join: str = ""


POSITION = "tb_position"
"""The name under which the number of an element in C order is walked, as if it were an array's offset."""
_MACRO = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


def names_position(spec: Elementwise | Reduction, text: str) -> bool:
    """Whether a text of a kernel, or a macro that it may use, asks for the number of the element."""
    macros = (*_MACRO.findall(spec.preamble), *(value for _, value in spec.macros))
    return any(re.search(r"\bi\b", x) for x in (text, *macros))


def indexed_by_arrays(spec: Elementwise | Reduction) -> list[str]:
    """The raw parameters that a text indexes by an array of places, `x[ij]`."""
    texts = [spec.body] if isinstance(spec, Elementwise) else [spec.map, spec.post]
    raw = [p.name for p in spec.parameters if p.raw]
    return [name for name in raw if any(_by_arrays(spec, name, text) is not None for text in texts)]


def _by_arrays(spec: Elementwise | Reduction, name: str, text: str) -> re.Pattern | None:
    """What finds the places where a text indexes a parameter by an array; None if there are none. What is itself
    indexed somewhere is an array."""
    arrays = set(re.findall(r"\b([A-Za-z_]\w*)\s*\[", blanked(text))) - {p.name for p in spec.parameters}
    found = re.compile(rf"\b{name}\s*\[\s*({'|'.join(sorted(arrays))})\s*\]")
    return found if arrays and found.search(text) else None


def _indented(lines: list[str]) -> Iterator[str]:
    """Lines indented by their braces; what the user wrote (after a `#line` of its own) stays as it is."""
    depth, ours = 0, True
    for line in lines:
        if line.startswith("#line"):
            ours = line.endswith('"generated"')
        if not ours or line.startswith("#"):
            yield line
            continue
        closing = len(line) - len(line.lstrip("}"))
        yield "    " * (depth - closing) + line
        depth += line.count("{") - line.count("}")


class UserPrinter(ABC):
    """Prints one form of a user kernel; a dialect adds functions, arguments and loops."""

    header = ""
    boolean = ""

    def __init__(self, spec: Elementwise | Reduction, form: Form) -> None:
        self.spec = spec
        self.form = form
        self.types = dict(zip((p.name for p in spec.parameters), form.types))
        numbers = dict(zip((p.name for p in spec.parameters), form.is_number))
        by_name = {p.name: p for p in spec.parameters}
        self.numbers = [p for p in spec.parameters if numbers[p.name]]
        self.whole = [p for p in spec.parameters if p.whole and not numbers[p.name]]
        self.walked: list[Array] = [
            (by_name[name], self.types[name], units) for name, units in form.units if name != POSITION
        ]
        self.lines: list[str] = []

    def result(self) -> UserSource:
        """The printed form; its functions are named by a digest of the text."""
        self._head()
        if isinstance(self.spec, Elementwise):
            self._elementwise(self.spec)
        else:
            self._reduction(self.spec)
        source = "\n".join(_indented(self.lines)) + "\n"
        name = "tb_" + hashlib.sha256(source.encode()).hexdigest()[:16]
        join = f"{name}_join" if self.form.split else ""
        return UserSource(source.replace("KERNEL", name), name, join)

    # What a dialect adds

    @abstractmethod
    def _functions(self, words: set[str], own: set[str]) -> Iterator[str]:
        """Macros for the functions among the words of the user's text; `own` ones are the preamble's."""

    def _declared(self, preamble: str) -> str:
        """The preamble as the dialect wants its declarations."""
        return preamble

    def _around(self, words: set[str]) -> tuple[list[str], list[str]]:
        """Lines before and after the preamble, for the words in it that the dialect lacks."""
        return [], []

    @abstractmethod
    def _elementwise(self, spec: Elementwise) -> None:
        """Print the kernel of an elementwise spec."""

    @abstractmethod
    def _reduction(self, spec: Reduction) -> None:
        """Print the kernels of a reduction."""

    # Text

    def say(self, *lines: str) -> None:
        """Add lines."""
        self.lines += lines

    def _texts(self) -> dict[str, str]:
        """The user's texts by the label under which messages name them."""
        spec = self.spec
        if isinstance(spec, Elementwise):
            return {spec.name: spec.body}
        return {f"{spec.name} ({label})": getattr(spec, label) for label in ("map", "reduce", "post", "identity")}

    def _quote(self, text: str, label: str, *end: str) -> None:
        """The user's text on lines of its own, and what ends it, at which a compiler meets that it is not whole."""
        placed = re.sub(r"\b_ind\s*\.\s*size\s*\(\s*\)", "(tb_n)", text)
        for name, rank in self.form.ranks:
            by_arrays = _by_arrays(self.spec, name, text)
            if by_arrays is not None:
                placed = by_arrays.sub(lambda found, x=name, n=rank: f"{x}[{self._place(x, n, found[1])}]", placed)
        self.say(f'#line 1 "{label}"', placed, *end, '#line 1 "generated"')

    def _head(self) -> None:
        """Types and functions that the user's text may name, then the preamble; what it includes comes first."""
        preamble = self.spec.preamble
        words = set(re.findall(r"\w+", " ".join([*self._texts().values(), preamble])))
        self.say(f'#include "{self.header}"', f"// kernel: {self.spec.name}")
        for found in _INCLUDE.finditer(preamble):
            number = preamble.count("\n", 0, found.start()) + 1
            self.say(f'#line {number} "{self.spec.name} (preamble)"', found[0], '#line 1 "generated"')
        self.say(*(f"typedef {self._computed(dtype)} {letter};" for letter, dtype in sorted(self.form.bound)))
        for dtype in dtypes.DTYPES:
            if dtype.name in words and dtype != dtypes.BOOL:
                self.say(f"typedef {self._computed(dtype)} {dtype.name};")
        values = {"INFINITY": "TB_INF_F32", "NAN": "TB_NAN_F32", **self._names()}
        self.say(*(f"#define {word} {value}" for word, value in values.items() if word in words))
        macros = {word for word in words if re.search(rf"#\s*define\s+{word}\b", preamble)}
        own = {w for w in words - KEYWORDS if re.search(rf"\b{w}\s*\([^;{{}}()]*\)\s*\{{", preamble)}
        self.say(*self._functions(words - own - macros, own))
        self.say(*(f"#define {name} {value}" for name, value in self.spec.macros))
        if preamble.strip():
            blank = _INCLUDE.sub("", preamble)
            before, after = self._around(set(re.findall(r"\w+", blank)))
            self.say(*before, f'#line 1 "{self.spec.name} (preamble)"', self._declared(blank), *after)

    def _names(self) -> dict[str, str]:
        """Macros for names that the dialect lacks."""
        return {}

    def _computed(self, dtype: np.dtype) -> str:
        """The type of a value in the user's text."""
        return self.boolean if dtype == dtypes.BOOL else ctype(dtypes.compute(dtype))

    def _stored(self, dtype: np.dtype) -> str:
        """The type of an element in memory."""
        return self.boolean if dtype == dtypes.BOOL else ctype(dtype)

    def _scalars(self) -> None:
        """The numbers among the parameters, by their names."""
        for k, p in enumerate(self.numbers):
            dtype = self.types[p.name]
            kind, c = "double" if dtypes.is_float(dtype) else "tb_i64", self._computed(dtype)
            self.say(f"const {c} {p.name} = ({c})tb_word_{kind}(tb_scalar[{k}]); (void){p.name};")

    def _pointers(self) -> None:
        """Addresses: of walked arrays under names of ours, of whole ones under the user's."""
        for k, (p, dtype, _) in enumerate(self.walked):
            c = f"{'' if p.written else 'const '}{self._stored(dtype)} *"
            self.say(f"{c}const tb_p_{p.name} = ({c})tb_ptr[{k}];")
        for k, p in enumerate(self.whole, start=len(self.walked)):
            c = f"{'' if p.written else 'const '}{self._computed(self.types[p.name])} *"
            self.say(f"{c}const {p.name} = ({c})tb_ptr[{k}]; (void){p.name};")

        at = self.lengths_at
        for name, rank in self.form.ranks:
            for axis in range(1, rank):
                self.say(f"const tb_i64 tb_n_{name}_{axis} = tb_size[{at}]; (void)tb_n_{name}_{axis};")
                at += 1

    def _place(self, name: str, rank: int, places: str) -> str:
        """The number of a whole array's element in C order, from an array of its places along `rank` axes."""
        number = f"(tb_i64){places}[0]"
        for axis in range(1, rank):
            number = f"({number}) * tb_n_{name}_{axis} + {places}[{axis}]"
        fits = f"sizeof({places}) == {rank} * sizeof(*{places})"
        return self._asserted(fits, f"{name} has {rank} axes, and {places} another number of places", number)

    @property
    @abstractmethod
    def lengths_at(self) -> int:
        """Where the lengths of whole arrays' axes, but the first, are among the sizes."""

    @abstractmethod
    def _asserted(self, condition: str, message: str, value: str) -> str:
        """A value, where a condition holds when the text is compiled."""

    def _offsets(self, axes: Sequence[int], number: str, start: str = "") -> None:
        """`tb_o_<name>`: how far the element `number` of the space of some axes is from an array's start. `start` is
        the prefix of the offsets to begin from."""
        if len(axes):
            self.say(f"tb_i64 tb_rest = {number};")
        self.say(*(f"tb_i64 tb_o_{name} = {start}{name if start else 0};" for name, _ in self.form.units))
        for axis in reversed(axes):
            here, rest = f"tb_rest % tb_size[{axis}]", f"tb_rest /= tb_size[{axis}];"
            if axis == axes[0]:
                here, rest = "tb_rest", ""
            moves = [f"tb_o_{name} += tb_x{self._times(k, axis)};" for k, (name, units) in enumerate(self.form.units)
                     if units[axis]]  # fmt: skip
            self.say(" ".join([f"{{ const tb_i64 tb_x = {here}; (void)tb_x;", rest, *moves, "}"]))

    def _times(self, k: int, axis: int) -> str:
        """What the position along an axis is multiplied by in array number `k`."""
        return "" if self.form.units[k][1][axis] == 1 else f" * tb_stride[{k * self.form.rank + axis}]"

    def _places(self, axis: int, position: str, start: str = "tb_o_") -> dict[str, str]:
        """Where each walked array's element at a position along an axis lies."""
        found = {}
        for k, (name, units) in enumerate(self.form.units):
            step = f" + ({position}){self._times(k, axis)}" if units[axis] else ""
            found[name] = f"{start}{name}{step}"
        return found

    def _element(self, places: dict[str, str]) -> None:
        """The parameters of one element, read at their places."""
        for p, dtype, _ in self.walked:
            place = f"tb_p_{p.name}[{places[p.name]}]"
            value = f"tb_{dtypes.tag(dtype)}_to_f32({place})" if dtypes.is_half(dtype) else place
            if p.written and dtype == dtypes.BOOL:  # what was never written may be no truth value
                value = f"*(const unsigned char *)&{place} != 0"
            self.say(f"{'' if p.written else 'const '}{self._computed(dtype)} {p.name} = {value}; (void){p.name};")
        if POSITION in places:
            self.say(f"const tb_i64 i = {places[POSITION]}; (void)i;")

    def _store(self, p: Parameter, place: str) -> None:
        """An output's element written to its place."""
        dtype = self.types[p.name]
        value = f"tb_f32_to_{dtypes.tag(dtype)}({p.name})" if dtypes.is_half(dtype) else p.name
        self.say(f"tb_p_{p.name}[{place}] = {value};")

    def _body(self, text: str, label: str) -> None:
        """A body that `continue` leaves."""
        self.say("do {")
        self._quote(text, label)
        self.say("} while (0);")

    # Reductions

    @property
    def value_type(self) -> str:
        """The type in which a reduction computes: its output's."""
        return self._computed(self.form.types[-1])

    @property
    def reduced(self) -> list[int]:
        """The reduced axes."""
        return list(range(self.form.kept, self.form.rank))

    def _reduction_functions(self, spec: Reduction, head: str) -> None:
        """Two values as one, and the identity, as functions."""
        c, name = self.value_type, spec.name
        self.say(f"{head} {c} tb_both(const {c} a, const {c} b) {{ return ({c})(")
        self._quote(spec.reduce, f"{name} (reduce)", ")")
        self.say("; }", f"{head} {c} tb_identity(void) {{ return ({c})(")
        self._quote(spec.identity, f"{name} (identity)", ")")
        self.say("; }")

    def _reduction_sizes(self) -> None:
        """What the host says beside the lengths: reduced elements, results, segments and the length of each."""
        for k, name in enumerate(("n", "rows", "segments", "segment")):
            self.say(f"const tb_i64 tb_{name} = tb_size[{self.form.rank + k}]; (void)tb_{name};")
        self.say("const tb_i64 n = tb_n; (void)n;")

    def _mapped(self, spec: Reduction, places: dict[str, str]) -> None:
        """`tb_mapped`: what an element becomes."""
        self._element(places)
        self.say(f"const {self.value_type} tb_mapped = ({self.value_type})(")
        self._quote(spec.map, f"{spec.name} (map)", ")")
        self.say(";")

    def _finish(self, spec: Reduction, value: str, row: str) -> None:
        """The result number `row`: assigned by the user's text from `a`, and written."""
        out, base = spec.outputs[0], len(self.form.units) * self.form.rank
        self.say("{", f"tb_i64 tb_left = {row}, tb_at = 0; (void)tb_left;")
        for axis in reversed(range(self.form.kept)):
            rest = "tb_left" if axis == 0 else f"tb_left % tb_size[{axis}]"
            self.say(f"tb_at += ({rest}) * tb_stride[{base + axis}]; tb_left /= tb_size[{axis}];")
        self.say(f"const {self.value_type} a = {value}; (void)a;", f"{self.value_type} {out.name} = 0;")
        self._body(spec.post, f"{spec.name} (post)")
        self._store(out, "tb_at")
        self.say("}")

    def _leave(self, spec: Reduction, value: str, row: str, place: str) -> None:
        """The value of a task: a partial result at its place in the scratch memory, or result number `row`."""
        if self.form.split:
            self.say(f"tb_scratch[{place}] = {value};")
        else:
            self._finish(spec, value, row)

    def _outputs(self, spec: Reduction) -> None:
        """The addresses of a reduction's output, and of the partial results."""
        at = len(self.walked) + len(self.whole)
        c = f"{self._stored(self.form.types[-1])} *"
        self.say(f"{c}const tb_p_{spec.outputs[0].name} = ({c})tb_ptr[{at}];")
        if self.form.split:
            self.say(f"{self.value_type} *const tb_scratch = ({self.value_type} *)tb_ptr[{at + 1}];")


# C

_ONE = ("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "floor", "ceil", "tanh", "sin", "cos", "tan", "asin", "acos",
        "atan", "sinh", "cosh", "erf", "erfc")  # fmt: skip
_ROUND = "static inline {c} tb_user_round_{t}({c} x) {{ const {c} t = tb_trunc_{t}(x), d = tb_abs_{t}(x - t); "\
         "return d >= ({c})0.5 ? (x < 0 ? t - 1 : t + 1) : t; }}"  # fmt: skip


def _chosen(count: int, text: str, other: str = "") -> str:
    """A function of numbers as a macro's value: `text` with S for the tag of their common type; `other` is for types
    that are not floating, which otherwise become double. Each argument is written once, so that calls may nest."""
    names = ["tb_a", "tb_b", "tb_c"][:count]

    def call(tag: str, c: str) -> str:
        return f"{text.replace('S', tag)}({', '.join(f'({c}){name}' for name in names)})"

    floats = f"float: {call('f32', 'float')}, "
    rest = f"double: {call('f64', 'double')}, default: {other}" if other else f"default: {call('f64', 'double')}"
    taken = " ".join(f"__auto_type {name} = (tb_{letter});" for name, letter in zip(names, "xyz"))
    return f"({{ {taken} _Generic({' + '.join(names)}, {floats}{rest}); }})"


FUNCTIONS = {
    **{name: (1, _chosen(1, f"tb_{name}_S")) for name in _ONE},
    "fabs": (1, _chosen(1, "tb_abs_S")),
    "round": (1, _chosen(1, "tb_user_round_S")),
    **{name: (2, _chosen(2, f"tb_{name}_S")) for name in ("pow", "atan2", "fmod")},
    "fma": (3, _chosen(3, "TB_FMA_S").replace("FMA_f", "FMA_F")),
    "abs": (1, _chosen(1, "tb_abs_S", "tb_a < 0 ? -tb_a : tb_a")),
    "max": (2, _chosen(2, "tb_max_S", "tb_a > tb_b ? tb_a : tb_b")),
    "min": (2, _chosen(2, "tb_min_S", "tb_a < tb_b ? tb_a : tb_b")),
    "isnan": (1, "({ const double tb_a = (tb_x); tb_a != tb_a; })"),
    "isinf": (1, "({ const double tb_a = (tb_x); tb_abs_f64(tb_a) == TB_INF_F64; })"),
}
"""The functions of user texts: how many arguments they take, and what they are in C."""


QUALIFIERS = {
    **dict.fromkeys(("__device__", "__host__", "__constant__", "__forceinline__", "__noinline__"), ""),
    "inline": "__inline__ __attribute__((__gnu_inline__))",  # compiled even where all calls could be inlined
}
"""What preambles say of functions and tables for CUDA C++, in C; the C of the standard compiles no inline function that
it does not inline."""
TEMPLATE = re.compile(r"^(?![ \t]*#)[^\n]*\btemplate\s*<[^\n]*", re.MULTILINE)
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|endif)", re.MULTILINE)


class CPrinter(UserPrinter):
    """C: a kernel of tasks. Loops along memory are plain, so that the compiler makes vector code of them."""

    header = "kernel.h"
    boolean = "_Bool"

    def _names(self) -> dict[str, str]:
        return {"bool": "_Bool", "true": "1", "false": "0", "size_t": "unsigned long", "ptrdiff_t": "long",
                "printf": "__builtin_printf"}  # fmt: skip

    @property
    def lengths_at(self) -> int:
        return self.form.rank + (5 if isinstance(self.spec, Reduction) else 1)

    def _asserted(self, condition: str, message: str, value: str) -> str:
        return f'({{ _Static_assert({condition}, "{message}"); {value}; }})'

    def _functions(self, words: set[str], own: set[str]) -> Iterator[str]:
        if "round" in words:
            yield from (_ROUND.format(c=c, t=t) for c, t in (("float", "f32"), ("double", "f64")))
        for word in sorted(words & FUNCTIONS.keys()):
            count, value = FUNCTIONS[word]
            yield f"#define {word}({', '.join(('tb_x', 'tb_y', 'tb_z')[:count])}) {value}"

    def _declared(self, preamble: str) -> str:
        """The preamble as it is. Raises `ValueError` for a template in it, unless a condition may leave that out."""
        plain = blanked(preamble)
        for found in TEMPLATE.finditer(plain):
            conditions = CONDITION.findall(plain, 0, found.start())
            if 2 * conditions.count("endif") == len(conditions):
                given = preamble[found.start() : found.end()].strip()
                head = f"{self.spec.name}: a template in the preamble, for the CPU"
                hint = "a function for each type, or the template between #ifdef __CUDACC__ and #endif"
                raise ValueError(complain(head, given, "C: templates are for devices", hint))
        return preamble

    def _around(self, words: set[str]) -> tuple[list[str], list[str]]:
        found = [word for word in QUALIFIERS if word in words]
        return [f"#define {word} {QUALIFIERS[word]}" for word in found], [f"#undef {word}" for word in found]

    def _signature(self, name: str) -> str:
        return (
            f"void {name}(void *const *tb_ptr, const tb_i64 *tb_size, const tb_i64 *tb_stride, "
            "const tb_i64 *tb_scalar, tb_i64 tb_begin, tb_i64 tb_end) {"
        )

    def _open(self, name: str) -> None:
        self.say(self._signature(name), "(void)tb_stride; (void)tb_scalar; (void)tb_size;")
        self._scalars()
        self._pointers()

    def _elementwise(self, spec: Elementwise) -> None:
        rank = self.form.rank
        self._open("KERNEL")
        self.say(f"const tb_i64 tb_n = tb_size[{rank}], tb_inner = tb_size[{rank - 1}];")
        if "n" not in self.types:
            self.say("const tb_i64 n = tb_n; (void)n;")
        self.say("for (tb_i64 tb_task = tb_begin; tb_task < tb_end; ++tb_task) {",
                 f"tb_i64 tb_flat = tb_task * {CHUNK};",
                 f"const tb_i64 tb_stop = tb_flat + {CHUNK} < tb_n ? tb_flat + {CHUNK} : tb_n;",
                 "while (tb_flat < tb_stop) {",
                 "const tb_i64 tb_from = tb_flat % tb_inner;",
                 "const tb_i64 tb_count = tb_inner - tb_from < tb_stop - tb_flat ? tb_inner - tb_from : "
                 "tb_stop - tb_flat;")  # fmt: skip
        self._offsets(range(rank - 1), "tb_flat / tb_inner")
        if not self.whole:
            self.say("#pragma GCC ivdep")
        self.say("for (tb_i64 tb_j = 0; tb_j < tb_count; ++tb_j) {")
        places = self._places(rank - 1, "tb_from + tb_j")
        self._element(places)
        self._body(spec.body, spec.name)
        for p, _, _ in self.walked:
            if p.written:
                self._store(p, places[p.name])
        self.say("}", "tb_flat += tb_count;", "}", "}", "}")

    def _reduction(self, spec: Reduction) -> None:
        self._reduction_functions(spec, "static inline")
        self._fold()
        self._open("KERNEL")
        self._outputs(spec)
        self._reduction_sizes()
        self.say("for (tb_i64 tb_task = tb_begin; tb_task < tb_end; ++tb_task) {")
        (self._columns if self.form.columns else self._rows)(spec)
        self.say("}", "}")
        if self.form.split:
            self._join(spec)

    def _fold(self) -> None:
        """Values to one: neighbours in pairs, again and again, so that their order stays and errors do not add up."""
        c = self.value_type
        self.say(f"static {c} tb_fold({c} *tb_v, tb_i64 tb_m) {{",
                 "while (tb_m > 1) {", "const tb_i64 tb_half = tb_m / 2;",
                 "#pragma GCC ivdep",
                 "for (tb_i64 tb_j = 0; tb_j < tb_half; ++tb_j) "
                 "tb_v[tb_j] = tb_both(tb_v[2 * tb_j], tb_v[2 * tb_j + 1]);",
                 "if (tb_m & 1) tb_v[tb_half] = tb_v[tb_m - 1];",
                 "tb_m = tb_half + (tb_m & 1);", "}", "return tb_v[0]; }")  # fmt: skip

    def _segment(self, task: str) -> None:
        """The elements of a task: a segment of the reduced space."""
        self.say(f"const tb_i64 tb_first = {task} % tb_segments * tb_segment;",
                 "const tb_i64 tb_stop = tb_first + tb_segment < tb_n ? tb_first + tb_segment : tb_n;")  # fmt: skip

    def _rows(self, spec: Reduction) -> None:
        """One result: blocks of mapped elements, whatever the lengths of the axes, each folded to one value."""
        c, inner = self.value_type, self.form.rank - 1
        self.say("const tb_i64 tb_row = tb_task / tb_segments;")
        self._segment("tb_task")
        self._offsets(range(self.form.kept), "tb_row")
        self._keep_offsets()
        self.say(f"{c} tb_all = tb_identity();",
                 "for (tb_i64 tb_flat = tb_first; tb_flat < tb_stop;) {",
                 f"{c} tb_block[{BLOCK}]; tb_i64 tb_m = 0; const int tb_more = tb_flat > tb_first;",
                 f"while (tb_m < {BLOCK} && tb_flat < tb_stop) {{",
                 f"const tb_i64 tb_inner = tb_size[{inner}], tb_from = tb_flat % tb_inner;",
                 "tb_i64 tb_count = tb_inner - tb_from < tb_stop - tb_flat ? tb_inner - tb_from : tb_stop - tb_flat;",
                 f"if (tb_count > {BLOCK} - tb_m) tb_count = {BLOCK} - tb_m;")  # fmt: skip
        self._offsets(self.reduced[:-1], "tb_flat / tb_inner", "tb_r_")
        self.say("#pragma GCC ivdep", "for (tb_i64 tb_j = 0; tb_j < tb_count; ++tb_j) {")
        self._mapped(spec, self._places(inner, "tb_from + tb_j"))
        self.say("tb_block[tb_m + tb_j] = tb_mapped;", "}", "tb_m += tb_count; tb_flat += tb_count;", "}",
                 f"const {c} tb_value = tb_fold(tb_block, tb_m);",
                 "tb_all = tb_more ? tb_both(tb_all, tb_value) : tb_value;", "}")  # fmt: skip
        self._leave(spec, "tb_all", "tb_row", "tb_task")

    def _columns(self, spec: Reduction) -> None:
        """A strip of results side by side: runs of elements one by one, then run by run."""
        c, wide = self.value_type, self.form.kept - 1
        self.say(f"const tb_i64 tb_wide = tb_size[{wide}], tb_strips = tb_size[{self.form.rank + 4}];",
                 "const tb_i64 tb_strip = tb_task / tb_segments, tb_outer = tb_strip / tb_strips;",
                 f"const tb_i64 tb_from = tb_strip % tb_strips * {STRIP};",
                 f"const tb_i64 tb_count = tb_wide - tb_from < {STRIP} ? tb_wide - tb_from : {STRIP};")  # fmt: skip
        self._segment("tb_task")
        self._offsets(range(wide), "tb_outer")
        self._keep_offsets()
        self.say(f"{c} tb_all[{STRIP}], tb_run[{STRIP}];",
                 "for (tb_i64 tb_j = 0; tb_j < tb_count; ++tb_j) tb_all[tb_j] = tb_identity();",
                 f"for (tb_i64 tb_k = tb_first; tb_k < tb_stop; tb_k += {RUN}) {{",
                 f"const tb_i64 tb_last = tb_k + {RUN} < tb_stop ? tb_k + {RUN} : tb_stop;",
                 "for (tb_i64 tb_q = tb_k; tb_q < tb_last; ++tb_q) {")  # fmt: skip
        self._offsets(self.reduced, "tb_q", "tb_r_")
        self.say("#pragma GCC ivdep", "for (tb_i64 tb_j = 0; tb_j < tb_count; ++tb_j) {")
        self._mapped(spec, self._places(wide, "tb_from + tb_j"))
        self.say("tb_run[tb_j] = tb_q == tb_k ? tb_mapped : tb_both(tb_run[tb_j], tb_mapped);", "}", "}",
                 "for (tb_i64 tb_j = 0; tb_j < tb_count; ++tb_j) "
                 "tb_all[tb_j] = tb_k == tb_first ? tb_run[tb_j] : tb_both(tb_all[tb_j], tb_run[tb_j]);",
                 "}", "for (tb_i64 tb_j = 0; tb_j < tb_count; ++tb_j) {",
                 "const tb_i64 tb_row = tb_outer * tb_wide + tb_from + tb_j;")  # fmt: skip
        self._leave(spec, "tb_all[tb_j]", "tb_row", "tb_row * tb_segments + tb_task % tb_segments")
        self.say("}")

    def _keep_offsets(self) -> None:
        """The offsets of a task, from which those of its elements go on."""
        self.say(*(f"const tb_i64 tb_r_{name} = tb_o_{name}; (void)tb_r_{name};" for name, _ in self.form.units))

    def _join(self, spec: Reduction) -> None:
        """The second stage: the partial results of each result as one."""
        self._open("KERNEL_join")
        self._outputs(spec)
        self._reduction_sizes()
        self.say("for (tb_i64 tb_task = tb_begin; tb_task < tb_end; ++tb_task) {")
        self._finish(spec, "tb_fold(tb_scratch + tb_task * tb_segments, tb_segments)", "tb_task")
        self.say("}", "}")
