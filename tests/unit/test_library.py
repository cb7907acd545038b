# SPDX-License-Identifier: Apache-2.0
"""What of the kernels' headers a source is compiled with: all that it names, whatever form it has, and nothing else."""

from __future__ import annotations

import re

import pytest

from tensorbackend.codegen.library import Definitions

PARTS = {
    "TB_LANES": "#define TB_LANES 8\n",
    "TB_TWICE": "#define TB_TWICE(x) ((x) * TB_LANES * 2)\n",
    "tb_u32": "typedef unsigned tb_u32;",
    "tb_v8": " typedef float tb_v8 __attribute__((vector_size(32)));\n",
    "tb_pair": "\ntypedef struct {\n    tb_u32 low __attribute__((aligned(8))), high;\n} tb_pair;\n",
    "tb_table": "static const tb_u32 tb_table[] = {\n    1, 2, TB_LANES };\n",
    "tb_first": """
static inline tb_u32 tb_first(tb_u32 x)
{
    struct { tb_u32 y; } z = { x };
    if (x) { z.y += TB_TWICE(1); }
    return z.y + tb_table[0];
}
""",
    "tb_second": "static inline tb_u32 tb_second(\n    tb_u32 x)\n{ return tb_first(x) + x; }",
    "tbb_both": " static tb_pair tbb_both(tb_v8 x) { tb_pair both = {tb_second(1), 2}; return both; }\n",
    "tb_again": "static int tb_again(int x) { return x ? tb_again(x - 1) : 2; }\n",
}
HEADERS = "#define __GNUC__ 12\n#undef unix\n" + "".join(PARTS.values())


def needed(name: str) -> set[str]:
    """A definition and those that it brings along."""
    others = set(PARTS).intersection(re.findall(r"\w+", PARTS[name])) - {name}
    return {name}.union(*map(needed, others))


@pytest.mark.parametrize("name", PARTS)
def test_a_source_gets_what_it_names_in_the_order_of_the_headers(name: str) -> None:
    source = f"int use(void) {{ (void){name}; }}\n"
    text = Definitions(HEADERS).expand('#include "kernel.h"\n' + source)
    plain, guards = re.subn(r"^#ifndef (\w+)\n#define \1\n((?:.|\n)*?)\n#endif$", r"\2", text, flags=re.MULTILINE)
    wanted = [part for other, part in PARTS.items() if other in needed(name)]
    assert "".join(plain.split()) == "".join(("".join(wanted) + source).split())
    assert guards == sum(not part.startswith("#") for part in wanted)  # so that kernels can share a translation unit
    assert len(set(re.findall(r"#ifndef (\w+)", text))) == guards


def test_other_names_bring_nothing() -> None:
    source = "int tb_other(int tb_x) { return not_tb_first + tb_firsts + __GNUC__; }\n"
    assert Definitions(HEADERS).expand('#include "kernel.h"\n' + source).strip() == source.strip()


CALLED = """
__attribute__((simd, const)) float tb_call(float x);
static inline float tb_use(float x) { return tb_call(x); }
tb_v8 tb_wide(tb_v8 x) __asm__("_ZGV" "dN8v_tb_" "call");
tb_v8 tb_wide(tb_v8 x) { return tb_many(x); }
float tb_one(float x) __asm__("tb_call");
float tb_one(float x) { return tb_wide((tb_v8){x})[0]; }
"""


def test_a_function_that_others_call_by_a_name_of_the_vector_abi_comes_with_what_they_call() -> None:
    many = "static tb_v8 tb_many(tb_v8 x) { return x; }\n"
    definitions = Definitions(HEADERS + many + CALLED)
    text = "".join(definitions.expand("float use(float x) { return tb_use(x); }\n").split())
    for wanted in (PARTS["tb_v8"], many, *CALLED.strip().splitlines()):
        assert "".join(wanted.split()) in text
    assert "tb_wide" not in definitions.expand("tb_v8 use(tb_v8 x) { return tb_many(x); }\n")
