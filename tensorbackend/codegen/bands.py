# SPDX-License-Identifier: Apache-2.0
"""Rows of several passes in C, in bands that stay in the first-level cache.

Each pass goes over all rows of a band before the next pass. What follows from a row's reductions is computed for all
rows of a band at once, on vectors, so that no row waits for its logarithm; and the second pass, which computes most,
has the time to ask for the next band.

Where all passes add up what they compute, they go abreast: while the first reads a row, the second reads the row that
the first has left, and so on to the pass that stores, a piece of a row by turns. So memory is read and written all the
time, and no pass waits for the sums of another. The last rounds over the bands find only later passes at work.

A band depends on the length of rows alone, and a row has the same bits in any.
"""

from __future__ import annotations

from abc import abstractmethod

from tensorbackend.codegen.lanes import LANES, PIECE
from tensorbackend.codegen.nest import ROWS, Nest
from tensorbackend.codegen.render import ctype
from tensorbackend.codegen.segments import SegmentRenderer

__all__ = ["BandRenderer"]

BAND = 16
"""Rows of a band: those that go through each pass together."""
BAND_ELEMENTS = 1 << 12
"""Elements of a band at most; longer rows go one by one."""
FEW = 4
"""Rows of a band from which on what follows from their sums is computed on vectors."""
CACHED = 24 << 10
"""Bytes of the bands of all passes that go abreast, at most; longer rows go one by one."""


class BandRenderer(SegmentRenderer):
    """A dialect that can print passes over bands of rows.

    `waiting` are the values of rows that an earlier loop over the band has left in arrays, `w<value>[row of the band]`.
    """

    def __init__(self, found: Nest, split: bool) -> None:
        super().__init__(found, split)
        self.waiting: set[int] = set()
        self.lasting: set[int] = set()

    @abstractmethod
    def _declare(self, n: int) -> None:
        """Declare the result of the reduction `n` so far."""

    @abstractmethod
    def _reduce_pass(self, here: list[int]) -> None:
        """Print what accumulates the reductions `here`."""

    @abstractmethod
    def _reduce_loops(self, here: list[int], store: bool = False) -> None:
        """Print the loops over the reduced axes: accumulate the reductions `here`, or store the full outputs."""

    def _given_rows(self) -> list[int]:
        """The values of a row that are known before its first pass."""
        return [n for n, i in enumerate(self.body) if not self.full[n] and not self._constant(i) and i.stage == 0]

    def _goes_in_bands(self) -> bool:
        """Whether rows go in bands: where something follows from their reductions that is not one value an element, or
        passes can go abreast."""
        if self.nest.form != ROWS or self.split:
            return False
        self.abreast = self._goes_abreast()
        return self.abreast or self.nest.passes > 1 or bool(self._rows_after(1))

    def _goes_abreast(self) -> bool:
        """Whether passes can go abreast: what waits is in arrays, all of them add up, and the rest is stored."""
        if self.kept_value is not None or not self._stored() or not all(map(self._adds_up, self._passes_of_rows())):
            return False
        self.stage = self.nest.passes + 1
        return self._is_contiguous(self._needed(self._stored_values()))

    def _adds_up(self, stage: int) -> bool:
        """Whether a pass adds up what it computes."""
        self.stage = stage
        here = self._reduced_in(stage)
        needed = self._needed(a for n in here for a in self.body[n].args)
        return self._sums_run_along(here, self._direct_sources(here, needed))

    def _passes_of_rows(self) -> range:
        """The passes that reduce: the one after them stores."""
        return range(1, self.nest.passes + 1)

    def _stored_values(self) -> list[int]:
        """The values that are stored for each element."""
        return [self.kernel.outputs[k][1] for k in self._stored()]

    def _bands(self) -> None:
        """All rows, in bands."""
        across = self._across()
        most = self._rows_in_cache() if self.abreast else BAND_ELEMENTS
        self.say(f"const int band = {across} > {most} ? 1 : {across} > {most // BAND} ? {most} / {across} : {BAND};")
        self.lasting = self._lasting()
        if self.abreast:
            self._rounds()
        else:
            self._passes_in_turn()

    def _passes_in_turn(self) -> None:
        """Each pass over all rows of a band before the next pass."""
        self.say(f"const int near = streams & TB_STREAM_AHEAD && {self._across()} <= {BAND_ELEMENTS};")
        self.late = self._read_in_pass(2)
        self.waiting = set()
        self._declare_waiting(BAND)
        self.open("for (tb_i64 lead = first; lead < last; lead += band)")
        self.say("const int rows = (int)(last - lead < band ? last - lead : band);")
        for stage in range(1, self.nest.passes + 1):
            self.stage = stage
            self._band_pass(self.lasting)
            self._rows_at_once(self.lasting)
        self.stage = self.nest.passes + 1
        if self._stored():
            self._each_row(self._stored_values())
            self._reduce_loops([], store=True)
            self.close()
        self._band_outputs()
        self.close()

    def _declare_waiting(self, entries: int) -> None:
        for n in sorted(self.lasting):
            self.say(f"{ctype(self.body[n].dtype)} w{n}[{entries}] = {{0}};")

    def _band_outputs(self) -> None:
        """Store what is reduced."""
        reduced = [value for k, (_, value) in enumerate(self.kernel.outputs) if not self._full_output(k)]
        if reduced:
            self._each_row(reduced)
            self._row_outputs("")
            self.close()

    def _read_in_pass(self, stage: int) -> set[int]:
        """The inputs that a pass reads for its reductions."""
        self.stage = stage
        needed = self._needed(a for n in self._reduced_in(stage) for a in self.body[n].args)
        return {self.body[n].slot for n in needed if self.body[n].kind == "load"}

    def _lasting(self) -> set[int]:
        """Values of rows that loops after the one in which they are made read: kept in arrays, one entry a row."""
        found = {value for _, value in self.kernel.outputs}
        for n, i in enumerate(self.body):
            apart = self.full[n] or i.kind == "reduce"
            found.update(a for a in i.args if apart or self._after_pass(a) != self._after_pass(n))
        return {n for n in found if not self.full[n] and not self._constant(self.body[n])}

    def _after_pass(self, n: int) -> int:
        """After which pass a value of a row is computed; 0 where it is made in a pass."""
        i = self.body[n]
        return 0 if i.kind == "reduce" else i.stage

    def _band_pass(self, lasting: set[int]) -> None:
        """One pass over the rows of a band."""
        here = self._reduced_in(self.stage)
        self._each_row([a for n in here for a in self.body[n].args])
        made = [] if self.stage > 1 else self._given_rows()
        self._statements(made)
        self._reduce_pass(here)
        for n in here:
            self._finish(n, f"a{n}", f"k{n}")
        self._let_wait(lasting.intersection([*made, *here]))
        self.close()

    def _each_row(self, goals: list[int]) -> None:
        """Open the loop over the rows of a band, and read what the goals need of values that wait."""
        self.open(f"for (int r = 0; r < {f'rows{self.stage}' if self.abreast else 'rows'}; ++r)")
        self._at_row(goals)

    def _at_row(self, goals: list[int]) -> None:
        """The place of row r of the band, and what the goals need of values that wait."""
        self._row_position(self.nest.kept, f"({self._lead()} + r)")
        self._read_for(goals)

    def _lead(self) -> str:
        """The first row of the band that the pass at hand works on."""
        return f"lead - {self.stage - 1} * band" if self.abreast and self.stage > 1 else "lead"

    # Passes abreast

    def _rows_in_cache(self) -> int:
        """Elements of a band of which all passes together read what the first-level cache holds."""
        return CACHED // self._bytes_abreast()

    def _bytes_abreast(self) -> int:
        """Bytes that all passes together read for one element of a row."""
        read = {i.slot for n, i in enumerate(self.body) if i.kind == "load" and self.full[n]}
        return sum(self.kernel.inputs[slot].dtype.itemsize for slot in read) * (self.nest.passes + 1)

    def _rounds(self) -> None:
        """In each round every pass works on the band that the pass before it has left, a piece of a row by turns.

        What follows from rows waits in rings, with places for a band of each pass.
        """
        count = self.nest.passes + 1
        self.say(f"const tb_i64 ahead = tb_ahead({self._across()} * {self._bytes_abreast()});", "(void)ahead;")
        self.waiting = set(self.lasting)
        self._declare_waiting(count * BAND)
        self.open(f"for (tb_i64 lead = first, turn = 0; lead < last + {count - 1} * band; lead += band, ++turn)")
        for stage in range(1, count + 1):
            self.stage = stage
            ring = f"ring{stage} = (int)((turn + {count + 1 - stage}) % {count}) * {BAND}"
            self.say(f"const int rows{stage} = tb_rows_of({self._lead()}, first, last, band), {ring};")
        self.stage = 1
        given = self._given_rows()
        self._each_row([])
        self._statements(given)
        self._let_wait(self.lasting.intersection(given))
        self.close()
        self.open(f"for (int r = 0; {' || '.join(f'r < rows{stage + 1}' for stage in range(count))}; ++r)")
        self._sums_of_rows()
        self.close()
        for stage in self._passes_of_rows():
            self.stage = stage
            self._rows_at_once(self.lasting)
        self._band_outputs()
        self.close()

    def _sums_of_rows(self) -> None:
        """One row of each pass."""
        passes = {stage: self._reduced_in(stage) for stage in self._passes_of_rows()}
        for n in self.reductions:
            self._declare(n)
        for axis in self.nest.reduced:
            self.open(f"for (tb_i64 x{axis} = 0; x{axis} < n{axis}; ++x{axis})")
        length, block = f"n{self.nest.inner}", self._block()
        self.say("tb_i64 done = 0;")
        self.open(f"for (tb_i64 block = 0; block < {length}; block += {block})")
        self.say(f"const int size = (int)({length} - block < {block} ? {length} - block : {block});")
        for here in passes.values():
            self._declare_lanes(here)
        self.open(f"for (tb_i64 b = block; b < block + size; b += {PIECE})")
        self.say(f"const int m = block + size - b < {PIECE} ? (int)(block + size - b) : {PIECE}, full = m & -{LANES};")
        for stage, here in passes.items():
            self.stage = stage
            self._add_piece(here)
        self._store_piece()
        self.close()
        for stage, here in passes.items():
            self.stage = stage
            self._join_lanes(here, f"size >= {LANES}", f"size % {LANES}")
        self.close(1 + len(self.nest.reduced))
        for stage, here in passes.items():
            self.stage = stage
            for n in here:
                self._finish(n, f"a{n}", "")
            self._let_wait(self.lasting.intersection(here))

    def _add_piece(self, here: list[int]) -> None:
        """Add up a piece of the row of the pass at hand."""
        goals = [a for n in here for a in self.body[n].args]
        self.open(f"if (r < rows{self.stage})")
        self._at_row(goals)
        needed = self._needed(goals)
        before = [n for n in needed if not self.nest.varies(self.body[n])]
        self._statements(before)
        loop = [n for n in needed if n not in before]
        self._add_to_lanes(loop, here, self._prepare_inputs(loop, True) | self._drawn(loop, self._block()))
        self.close()

    def _store_piece(self) -> None:
        """Store the row of the last band from where it is (`done`) to the end of the piece."""
        self.stage = self.nest.passes + 1
        self.open(f"if (r < rows{self.stage})")
        self.say(f"const tb_i64 to = n{self.nest.inner}, upto = b + m;")
        self._at_row(self._stored_values())
        self._padded_values(self._needed(self._stored_values()), "for (tb_i64 b = done; b < upto; done = b)")
        self.close()

    # Values of rows

    def _rows_at_once(self, lasting: set[int]) -> None:
        """What follows from a pass, for whole vectors of rows: where a band has fewer, of zeros or earlier rows too.

        Abreast, a few rows go one by one: a vector read right after its parts were written waits for all stores before.
        """
        made = self._rows_after(self.stage)
        if not made:
            return
        if self.abreast:
            self.open(f"if (band < {FEW}) for (int r = 0; r < rows{self.stage}; ++r)")
            self.say("TB_ONE_BY_ONE;")
            self._follow(made, lasting)
            self.open(f"else if (rows{self.stage}) for (int r = 0; r < {BAND}; ++r)")
        else:
            self.open(f"for (int r = 0; r < {BAND}; ++r)")
        self._follow(made, lasting)

    def _follow(self, made: list[int], lasting: set[int]) -> None:
        """The values `made` of row r, and the end of the loop over r."""
        self._read_waiting([a for n in made for a in self.body[n].args if a not in made])
        self._statements(made)
        self._let_wait(lasting.intersection(made))
        self.close()

    def _read_for(self, goals: list[int]) -> None:
        """Read what the goals need of values that wait."""
        self._read_waiting([*goals, *(a for n in self._needed(goals) for a in self.body[n].args)])

    def _read_waiting(self, wanted: list[int]) -> None:
        for n in sorted(self.waiting.intersection(wanted)):
            self.say(f"const {ctype(self.body[n].dtype)} v{n} = w{n}[{self._entry()}];")

    def _let_wait(self, made: set[int]) -> None:
        for n in sorted(made):
            self.say(f"w{n}[{self._entry()}] = v{n};")
        self.waiting |= made

    def _entry(self) -> str:
        """Where a value of row r of the band at hand waits."""
        return f"ring{self.stage} + r" if self.abreast else "r"
