# SPDX-License-Identifier: Apache-2.0
"""Kernels that users write: what their parameter strings and bodies mean, the same for every target.

`elementwise` and `reduction` parse texts into an `Elementwise` or `Reduction`, `bind` gives each parameter its type for
given arguments, and `broadcast` says over which space a call runs. Printing is `codegen/user.py`, running a backend's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import DTypeError, ShapeError, complain

__all__ = [
    "KEYWORDS", "Axes", "Elementwise", "Kind", "Parameter", "Reduction", "Weak", "bind", "blanked", "broadcast",
    "by_memory", "elementwise", "merged", "number_text", "reduction",
]  # fmt: skip

ALIASES = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "short": "int16", "long": "int64",
    "long long": "int64", "unsigned": "uint32", "unsigned int": "uint32", "unsigned char": "uint8", "size_t": "uint64",
    "signed char": "int8", "unsigned short": "uint16", "unsigned long": "uint64", "unsigned long long": "uint64",
    "ptrdiff_t": "int64", "char": "int8",
}  # fmt: skip
KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true "
    "false alignas alignof and asm catch class concept constexpr decltype delete explicit export friend mutable "
    "namespace new noexcept not nullptr operator or private protected public requires template this throw try typeid "
    "typename using virtual xor and_eq bitand bitor compl not_eq or_eq xor_eq const_cast dynamic_cast reinterpret_cast "
    "static_cast co_await co_return co_yield consteval constinit threadIdx blockIdx blockDim gridDim warpSize".split()
)
"""Words of C and CUDA C++, which no parameter may be called: a kernel's text is the same for every backend."""
MACROS = frozenset(
    "INFINITY NAN size_t ptrdiff_t wchar_t char8_t char16_t char32_t static_assert thread_local typeof linux "
    "unix".split()
)
"""What headers and compilers define, C++ or a dialect of C itself: no parameter may be called so, but a preamble may
define them anew."""
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
_DEFINED = re.compile(r"^\s*#\s*(?:define|undef)\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Parameter:
    """One parameter: its `name`, its type's name or placeholder letter (`type`), and how the body sees it: one element,
    the whole array (`raw`), an array by its address (`pointer`), of which `written` says whether the body writes it."""

    name: str
    type: str
    raw: bool = False
    pointer: bool = False
    written: bool = False

    @property
    def placeholder(self) -> bool:
        """Whether the type is bound at the call."""
        return len(self.type) == 1

    @property
    def whole(self) -> bool:
        """Whether the body indexes the array itself."""
        return self.raw or self.pointer


@dataclass(frozen=True)
class Elementwise:
    """A loop body over inputs and outputs; `pointer` style has all its parameters in `inputs`."""

    name: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    body: str
    preamble: str = ""
    pointer: bool = False
    macros: tuple[tuple[str, str], ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters in the order of a call."""
        return self.inputs + self.outputs


@dataclass(frozen=True)
class Reduction:
    """`map` of each element, combined by `reduce` (of `a` and `b`) from `identity`, and `post` assigned from `a`."""

    name: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    map: str
    reduce: str
    post: str
    identity: str
    preamble: str = ""
    macros: tuple[tuple[str, str], ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters in the order of a call."""
        return self.inputs + self.outputs


def elementwise(texts: Sequence[str], preamble: str = "", options: Sequence[str] = ()) -> Elementwise:
    """The kernel of three texts (pointer style: parameters, body, name; else inputs, outputs, body) or four (a name).

    Raises `ValueError` for texts that are not parameters, names that are taken, or a body that leaves its braces.
    """
    if not 3 <= len(texts) <= 4 or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            complain(
                "elementwise: texts", f"{len(texts)}", "inputs, outputs, operation, name; or parameters, body, name"
            )
        )
    if len(texts) == 3 and "*" in texts[0]:
        body, name = texts[1], _kernel_name(texts[2])
        parameters = tuple(_pointer_parameter(text, body, name) for text in _split(texts[0]))
        _check_names(name, parameters, {"i"})
        _check_texts(name, parameters, {"operation": body}, preamble)
        return Elementwise(name, parameters, (), _body(body), preamble, True, _macros(name, parameters, options))
    inputs, outputs, body = texts[:3]
    name = _kernel_name(texts[3] if len(texts) == 4 else "user_" + "_".join(re.findall(r"\w+", body))[:40])
    given = tuple(_typed_parameter(text, name) for text in _split(inputs))
    made = tuple(_typed_parameter(text, name, written=True) for text in _split(outputs))
    if not made:
        raise ValueError(complain(f"{name}: no outputs", "", "'T z'"))
    _check_names(name, given + made, {"i", "n"})
    _check_texts(name, given + made, {"operation": body}, preamble)
    return Elementwise(name, given, made, _body(body), preamble, False, _macros(name, given + made, options))


def reduction(
    inputs: str, outputs: str, map_expr: str, reduce_expr: str, post: str, identity: str, name: str, preamble: str = "",
    options: Sequence[str] = (),
) -> Reduction:  # fmt: skip
    """The reduction of seven texts. Raises `ValueError` as `elementwise`, and unless there is one output, not raw."""
    name = _kernel_name(name)
    given = tuple(_typed_parameter(text, name) for text in _split(inputs))
    made = tuple(_typed_parameter(text, name, written=True) for text in _split(outputs))
    if len(made) != 1 or made[0].raw:
        raise ValueError(complain(f"{name}: outputs of a reduction", repr(outputs), "one, not raw"))
    _check_names(name, given + made, {"i", "n", "a", "b"})
    texts = {"map": map_expr, "reduce": reduce_expr, "post": post, "identity": identity}
    _check_texts(name, given + made, texts, preamble)
    macros = _macros(name, given + made, options)
    return Reduction(name, given, made, map_expr, reduce_expr, _body(post), identity, preamble, macros)


def number_text(x: Any) -> str:
    """A number in C; texts as they are."""
    if isinstance(x, (bool, np.bool_)):
        return str(int(x))
    words = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}
    return x if isinstance(x, str) else words.get(str(x), str(x))


def _macros(kernel: str, parameters: Sequence[Parameter], options: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The macros of options such as '-DSIZE=3'. Raises `ValueError` for other options, and names that are taken."""
    found = []
    for option in options:
        parts = re.fullmatch(r"-D\s*(\w+)(?:=([^\n]*))?", option)
        if parts is None:
            raise ValueError(complain(f"{kernel}: option", repr(option), "a macro: '-DNAME' or '-DNAME=VALUE'"))
        _contained(kernel, parameters, "options", f"#define {parts[1]} {parts[2]}")
        found.append((parts[1], "1" if parts[2] is None else parts[2]))
    return tuple(found)


def _kernel_name(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError(complain("kernel: name", repr(name), "letters, digits and underscores"))
    return name


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _typed_parameter(text: str, kernel: str, written: bool = False) -> Parameter:
    words = text.split()
    raw = words[:1] == ["raw"]
    words = [word for word in words[raw:] if word != "const"]
    if not words:
        raise ValueError(complain(f"{kernel}: empty parameter", repr(text), "'T x', 'float32 x', 'raw T x' or 'x'"))
    kind = " ".join(words[:-1]) or "T"
    return Parameter(words[-1], _type_name(kind, kernel, text), raw=raw, written=written)


def _pointer_parameter(text: str, body: str, kernel: str) -> Parameter:
    pointer = text.count("*")
    words = [word for word in text.replace("*", " ").split() if word not in ("const", "__restrict__", "restrict")]
    if len(words) < 2 or pointer > 1:
        raise ValueError(
            complain(f"{kernel}: parameter", repr(text), "'float* y', 'const float* x' or 'int n_channel'")
        )
    name = words[-1]
    written = bool(pointer) and "const" not in text.split("*")[0].split() and _writes(body, name)
    kind = _type_name(" ".join(words[:-1]), kernel, text)
    return Parameter(name, kind, pointer=bool(pointer), written=written)


def _type_name(kind: str, kernel: str, text: str) -> str:
    if len(kind) == 1 and kind.isalpha():
        return kind
    try:
        return dtypes.as_dtype(ALIASES.get(kind, kind)).name
    except DTypeError:
        expected = f"a dtype, {', '.join(ALIASES)}, or a single letter"
        raise ValueError(complain(f"{kernel}: type of a parameter", repr(text), expected)) from None


def _writes(body: str, name: str) -> bool:
    """Whether a body may write to an array: an element is assigned, or its address goes elsewhere."""
    text = _STRING_OR_COMMENT.sub(" ", body).replace("\\\n", " ")
    for found in re.finditer(rf"\b{name}\b\s*", text):
        rest = text[found.end() :]
        if not rest.startswith("["):
            return True
        after = rest[_bracket_end(rest) :].lstrip()
        before = text[: found.start()].rstrip()
        while before.endswith("(") and after.startswith(")") and not re.search(r"\w\s*\($", before):  # no call
            before, after = before[:-1].rstrip(), after[1:].lstrip()
        if re.match(r"(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--", after) or before.endswith(("++", "--", "&")):
            return True
    return False


def _bracket_end(text: str) -> int:
    """Where the bracket that `text` begins with has been closed."""
    depth = 0
    for end, letter in enumerate(text, start=1):
        depth += (letter == "[") - (letter == "]")
        if depth == 0:
            return end
    return len(text)


def _check_names(kernel: str, parameters: Sequence[Parameter], reserved: set[str]) -> None:
    """Raise `ValueError` for a parameter whose name is no name of its own, or whose type's letter is another's."""
    seen = {p.type for p in parameters}
    if seen & reserved:
        expected = f"another letter; not {', '.join(sorted(reserved))}"
        raise ValueError(complain(f"{kernel}: type of a parameter", repr(min(seen & reserved)), expected))
    names = [p.name for p in parameters]
    for p in parameters:
        if names.count(p.name) > 1:
            raise ValueError(complain(f"{kernel}: two parameters of one name", repr(p.name), "a name for each"))
        taken = p.name in reserved or p.name.startswith(("_", "tb_")) or p.name in KEYWORDS | MACROS | seen
        if taken or not _NAME.match(p.name):
            kept = f"{', '.join(sorted(reserved))}, their types, words of C and CUDA, and what begins with _ or tb_"
            raise ValueError(complain(f"{kernel}: name of a parameter", repr(p.name), f"another; not {kept}"))
        seen.add(p.name)


def _check_texts(kernel: str, parameters: Sequence[Parameter], texts: dict[str, str], preamble: str) -> None:
    """Raise `ValueError` for a text, by its label, that is empty or would reach beyond the place where it is put."""
    for label, text in texts.items():
        plain = _contained(kernel, parameters, label, text)
        if not plain.strip():
            raise ValueError(complain(f"{kernel}: {label} is empty", repr(text), "such as 'z = x * y + 1'"))
        if re.search(r"\breturn\b", plain):
            raise ValueError(complain(f"{kernel}: return in {label}", "", "", "continue: it ends the element"))
        if label in ("map", "reduce", "identity") and ";" in plain:
            raise ValueError(complain(f"{kernel}: a statement in {label}", repr(text), "an expression, without ;"))
    _contained(kernel, parameters, "preamble", preamble)


def _contained(kernel: str, parameters: Sequence[Parameter], label: str, text: str) -> str:
    """The text with strings and comments blanked. Raises `ValueError` unless it is complete and keeps to its names."""
    plain = _STRING_OR_COMMENT.sub(lambda found: "0" if found[0][0] in "\"'" else " ", text)
    for mark, what in (("/*", "a comment"), ('"', "a string"), ("'", "a character")):
        if mark in plain:
            raise ValueError(complain(f"{kernel}: {what} of {label} does not end", plain[plain.index(mark) :].strip()))
    directive = re.search(r"^\s*#\s*(?:line\b|\d).*$", plain, re.MULTILINE)
    if directive is not None:
        raise ValueError(complain(f"{kernel}: #line in {label}", directive[0].strip(), "lines as they are"))
    if text.rstrip().endswith("\\"):
        raise ValueError(complain(f"{kernel}: {label} ends in a backslash", text.strip()[-40:], "a last line"))
    if not _balanced(plain):
        raise ValueError(complain(f"{kernel}: braces of {label} do not match", text.strip(), "{ }, ( ), [ ] in pairs"))
    taken = KEYWORDS | {"i", "n"} | {word for p in parameters for word in (p.name, p.type)}
    ours = sorted({*re.findall(r"\btb_\w*", plain), *(taken & set(_DEFINED.findall(plain)))})
    if ours:
        expected = "no names with tb_ in front, and no macros for words of the language or parameters"
        raise ValueError(complain(f"{kernel}: {label} takes names that are taken", ", ".join(ours), expected))
    return plain


def blanked(text: str) -> str:
    """The text with strings and comments blanked, letter by letter."""
    return _STRING_OR_COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _balanced(text: str) -> bool:
    pairs, open_ones = {")": "(", "]": "[", "}": "{"}, []
    for letter in text:
        if letter in "([{":
            open_ones.append(letter)
        elif letter in pairs and (not open_ones or open_ones.pop() != pairs[letter]):
            return False
    return not open_ones


def _body(text: str) -> str:
    """The body with the semicolon that may be left out."""
    plain = _STRING_OR_COMMENT.sub(" ", text).rstrip()
    return text if plain.endswith((";", "}")) else text.rstrip() + "\n;"


# A call


@dataclass(frozen=True)
class Weak:
    """The type of an argument without axes: it decides a placeholder only when nothing else does, and is converted."""

    dtype: np.dtype


Kind = np.dtype | Weak | type | None
"""What `bind` is told of an argument: an array's dtype, a number's Python type, None for an output to be made."""


def bind(
    kernel: str, parameters: Sequence[Parameter], given: Sequence[Kind], default: np.dtype
) -> tuple[dict[str, np.dtype], list[np.dtype]]:
    """The placeholders' types, and each parameter's, for the kinds of the arguments. Raises `DTypeError` when they
    contradict each other, or nothing says what a placeholder is."""
    bound: dict[str, np.dtype] = {}
    for p, kind in zip(parameters, given):
        if not isinstance(kind, np.dtype):
            continue
        wanted = bound.setdefault(p.type, kind) if p.placeholder else np.dtype(dtypes.as_dtype(p.type))
        if wanted != kind:
            label = f"{p.type}, already {wanted.name}" if p.placeholder else wanted.name
            hint = f"be.astype, or an array of {wanted.name}"
            raise DTypeError(complain(f"{kernel}: type of {p.name}", kind.name, label, hint))
    for kinds in (Weak, type):
        for p, kind in zip(parameters, given):
            if p.placeholder and p.type not in bound and isinstance(kind, kinds):
                bound[p.type] = kind.dtype if isinstance(kind, Weak) else dtypes.promote([], [kind], default)
    missing = [p for p in parameters if p.placeholder and p.type not in bound]
    if missing:
        text = f"nothing says what {missing[0].type} is"
        raise DTypeError(complain(f"{kernel}: type of {missing[0].name}", text, "", "give the output as an argument"))
    return bound, [bound[p.type] if p.placeholder else dtypes.as_dtype(p.type) for p in parameters]


def broadcast(kernel: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape, by NumPy's rules. Raises `ShapeError` that names the shapes."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " ".join(map(str, shapes))
        raise ShapeError(complain(f"{kernel}: shapes do not broadcast", text, "equal lengths, or 1")) from None


@dataclass(frozen=True)
class Axes:
    """A space in as few axes as its arrays allow: their lengths, and each array's `strides` along them (elements)."""

    lengths: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def merged(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> Axes:
    """The space with neighbouring axes merged that every array walks evenly; at least one axis stays."""
    lengths: list[int] = []
    steps: list[tuple[int, ...]] = []
    for axis, length in enumerate(shape):
        here = tuple(s[axis] for s in strides)
        if length == 1:
            continue
        if lengths and all(before == now * length for before, now in zip(steps[-1], here)):
            lengths[-1] *= length
            steps[-1] = here
        else:
            lengths.append(length)
            steps.append(here)
    if not lengths:
        return Axes((1,), tuple((0,) for _ in strides))
    return Axes(tuple(lengths), tuple(zip(*steps)) if strides else ())


def by_memory(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> list[int]:
    """The axes with the longest steps first, those of earlier arrays deciding; of equals the order stays."""
    return sorted(range(len(shape)), key=lambda a: [-abs(s[a]) for s in strides])
