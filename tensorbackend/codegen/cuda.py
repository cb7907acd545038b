# SPDX-License-Identifier: Apache-2.0
"""The CUDA dialect: a kernel's loop nest for blocks of threads.

- map: threads walk (row, inner) by grid strides, a pack of up to 16 bytes at a time where memory is contiguous;
- rows: the threads of one x-row of a block share a row, and join by shuffles and shared memory; passes read it again;
- columns: threads of x take neighbouring columns, those of y share the reduced axis, and join through shared memory.

A kernel takes one structure of 8-byte words by value: addresses, sizes, strides, scalars. Whether packs are read and
written whole is for the host to say at each launch (`vector`), since it depends on addresses.
"""

from __future__ import annotations

from tensorbackend import dtypes
from tensorbackend.codegen.cuda_join import Join
from tensorbackend.codegen.geometry import SIZES, THREADS, argument_words, pack_width
from tensorbackend.codegen.nest import COLUMNS, MAP, ROWS, Nest
from tensorbackend.codegen.render import Printed, Renderer, ctype
from tensorbackend.graph.plan import Ref

__all__ = ["print_kernel"]

FIRST = {MAP: "blockIdx.x * (tb_i64)blockDim.x + threadIdx.x", ROWS: "threadIdx.x"}
STEP = {MAP: "gridDim.x * (tb_i64)blockDim.x", ROWS: "blockDim.x"}


def print_kernel(found: Nest, split: bool = False) -> Printed:
    """Print the kernel of a nest. `split` prints two functions: partial results of segments, and their sum."""
    return _Printer(found, split).result()


class _Printer(Join, Renderer):
    header = "kernel.cuh"
    sizes = SIZES

    def __init__(self, found: Nest, split: bool) -> None:
        super().__init__(found, split)
        self.width = pack_width(found)

    # Text

    def _signature(self, name: str) -> str:
        ptr, size, stride, scalar = argument_words(self.kernel, self.split)
        fields = f"void *ptr[{ptr}]; tb_i64 size[{size}], stride[{stride}], scalar[{scalar}];"
        head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
        return f"struct {name}_args {{ {fields} }};\n{head} {name}(const {name}_args a)"

    def _arguments(self) -> None:
        self.say(*(f"const auto &{name} = a.{name};" for name in ("ptr", "size", "stride", "scalar")))
        super()._arguments()

    def _bodies(self) -> None:
        self._statements([n for n, i in enumerate(self.body) if self._constant(i)])
        if self.split:
            self.open("for (tb_i64 part = blockIdx.y; part < segments; part += gridDim.y)")
        {MAP: self._map, ROWS: self._rows_form, COLUMNS: self._columns}[self.nest.form]()
        if self.split:
            self.close()

    def _map(self) -> None:
        inner = self.nest.inner
        self._open_rows("blockIdx.y", "gridDim.y")
        self._statements([n for n, i in enumerate(self.body) if not self._constant(i) and i.shape[inner] == 1])
        self._inner_loop([value for _, value in self.kernel.outputs], [], list(range(len(self.kernel.outputs))))
        self.close()

    def _rows_form(self) -> None:
        self._open_rows("blockIdx.x", "gridDim.x")
        self._passes("threadIdx.x == 0", "")
        self.close()

    def _open_rows(self, block: str, grid: str) -> None:
        first, step = f"{block} * (tb_i64)blockDim.y + threadIdx.y", f"{grid} * (tb_i64)blockDim.y"
        self.open(f"for (tb_i64 row = {first}; row < {self._rows()}; row += {step})")
        self._row_position(self.nest.kept, "row")

    def _columns(self) -> None:
        n = f"n{self.nest.inner}"
        self.say(f"const tb_i64 tiles = ({n} + blockDim.x - 1) / blockDim.x;")
        self.open(f"for (tb_i64 tile = blockIdx.x; tile < {self._rows()} * tiles; tile += gridDim.x)")
        self.say("const tb_i64 row = tile / tiles, column = tile % tiles * blockDim.x + threadIdx.x;")
        self.say(f"const bool inside = column < {n};", f"const tb_i64 at = inside ? column : {n} - 1;", "(void)row;")
        self._row_position(self.nest.kept, "row")
        self._passes("inside && threadIdx.y == 0", "single")
        self.close()

    # Passes over the reduced axes

    def _passes(self, one: str, form: str) -> None:
        """The reductions of each stage, then the outputs; `one` is true in the thread that writes what is reduced."""
        join = "tb_join_column" if self.nest.form == COLUMNS else "tb_join_row"
        self._statements(
            [n for n, i in enumerate(self.body) if not self.full[n] and not self._constant(i) and i.stage == 0]
        )
        for stage in range(1, self.nest.passes + 1):
            here = self._reduced_in(stage)
            for n in here:
                self._begin(n)
            self._reduce_loops(here)
            for n in here:
                self._over_threads(join, n)
            if self.split:
                self._leave_partials(one)
                return
            for n in here:
                self._finish(n, f"a{n}", f"a{n}.at")
            self._statements(self._rows_after(stage))
        if any(map(self._full_output, range(len(self.kernel.outputs)))):
            self._reduce_loops([], store=True)
        self.open(f"if ({one})")
        self._row_outputs(form)
        self.close()

    def _accumulate(self, n: int) -> None:
        i, kind, value = self.body[n], self._kind(n), f"v{self.body[n].args[0]}"
        if i.op.dtype == "index":
            value = f"{kind}{{{value}, {self._position()}}}"
        else:
            value = f"({value} != 0)" if i.dtype == dtypes.BOOL else f"({kind}){value}"
        self.say(f"a{n} = {self._joined(n, f'a{n}', value)};")

    def _reduce_loops(self, here: list[int], store: bool = False) -> None:
        """The loops over the reduced axes: accumulate the reductions `here`, or store the full outputs."""
        for axis in self.nest.reduced:
            low, high = self._bounds(axis)
            shared = self.nest.form == COLUMNS and axis == self.nest.reduced[0]
            first, step = (f"{low} + threadIdx.y", "blockDim.y") if shared else (low, "1")
            self.open(f"for (tb_i64 x{axis} = {first}, end{axis} = {high}; x{axis} < end{axis}; x{axis} += {step})")
        stores = [k for k in range(len(self.kernel.outputs)) if store and self._full_output(k)]
        goals = [self.kernel.outputs[k][1] for k in stores] or [a for n in here for a in self.body[n].args]
        self._inner_loop(goals, here, stores)
        self.close(len(self.nest.reduced))

    def _bounds(self, axis: int) -> tuple[str, str]:
        if axis != self.segment_axis:
            return "0", f"n{axis}"
        return "part * segment", f"(part + 1) * segment < n{axis} ? (part + 1) * segment : n{axis}"

    def _leave_partials(self, one: str) -> None:
        count = len(self._partials())
        task = f"part * ({self._rows()}) + row"
        task = f"({task}) * n{self.nest.inner} + at" if self.nest.form == COLUMNS else task
        self.open(f"if ({one})")
        self.say(f"tb_i64 *const words = scratch + ({task}) * {count};")
        for k, (n, kind) in enumerate(self._partials()):
            field = ".at" if kind == "k" else ".value" if self.body[n].op.dtype == "index" else ""
            self.say(f"words[{k}] = {self._as_word(n, kind, f'a{n}{field}')};")
        self.close()

    # The inner axis

    def _inner_loop(self, goals: list[int], here: list[int], stores: list[int]) -> None:
        """Compute the goals along the inner axis; accumulate the reductions `here`, and write the outputs `stores`."""
        needed, places = self._needed(goals), {k: self._output_place(k) for k in stores}
        if self.nest.form == COLUMNS:
            self._element(needed, here, places, {})
            return
        before = [n for n in needed if not self.nest.varies(self.body[n])]
        self._statements(before)
        (low, high), step = self._bounds(self.nest.inner), STEP[self.nest.form]
        first = f"{low} + ({FIRST[self.nest.form]}) * {self.width}"
        self.open(f"for (tb_i64 b = {first}, end = {high}; b < end; b += {step} * {self.width})")
        loop = [n for n in needed if n not in before]
        if self.width == 1:
            self.say("const tb_i64 at = b;")
            self._element(loop, here, places, {})
        else:
            self._pack(loop, here, places)
        self.close()

    def _pack(self, loop: list[int], here: list[int], places: dict[int, str]) -> None:
        """The work on a pack: read what lies contiguous, compute each element, write."""
        inputs, outputs, width = self.kernel.inputs, self.kernel.outputs, self.width
        self.say(f"const int m = (int)(end - b < {width} ? end - b : {width});")
        self.say(f"const bool whole = vector && m == {width};")
        reads = {}
        for n in loop:
            slot = self.body[n].slot
            if self.body[n].kind == "load" and self._is_packed(inputs[slot]):
                self.say(f"tb_pack<{ctype(inputs[slot].dtype)}, {width}> p{slot};")
                self.say(f"tb_pack_load(p{slot}, i{slot}{self._offset(slot, inputs[slot])} + b, m, whole);")
                reads[n] = self._widened(inputs[slot], f"p{slot}.v[j]")
        writes = [k for k in places if self._is_packed(outputs[k][0])]
        self.say(*(f"tb_pack<{ctype(outputs[k][0].dtype)}, {width}> q{k};" for k in writes), "#pragma unroll")
        self.open(f"for (int j = 0; j < {width}; ++j) if (j < m)")
        self.say("const tb_i64 at = b + j;")
        self._element(loop, here, {**places, **{k: f"q{k}.v[j]" for k in writes}}, reads)
        self.close()
        for k in writes:
            place = f"o{k}{self._offset(len(inputs) + k, outputs[k][0])} + b"
            self.say(f"tb_pack_store({place}, q{k}, m, whole);")

    def _is_packed(self, ref: Ref) -> bool:
        return self._stride_class(ref, self.nest.inner) == "one"

    def _output_place(self, k: int) -> str:
        slot, ref, inner = len(self.kernel.inputs) + k, self.kernel.outputs[k][0], self.nest.inner
        index = {"zero": "0", "one": "at"}.get(self._stride_class(ref, inner), f"at * s{slot}_{inner}")
        return f"(o{k}{self._offset(slot, ref)})[{index}]"

    def _element(self, values: list[int], here: list[int], places: dict[int, str], reads: dict[int, str]) -> None:
        """The work on one element: its values, then reductions or stores."""
        self.say("(void)at;")
        self._statements(values, reads)
        for n in here:
            self._accumulate(n)
        self.open("if (inside)" if places and self.nest.form == COLUMNS else "")
        for k, place in places.items():
            self._store(k, place, "plain")
        self.close()
