# SPDX-License-Identifier: Apache-2.0
"""Rows of several passes in C, in bands that stay in the first-level cache.

Each pass goes over all rows of a band before the next pass; what stores a band may go beside the first pass over the
next one. What follows from a row's reductions is computed for all rows of a band at once, on vectors, so that no row
waits for its logarithm; and a later pass, which computes most or stores, has the time to ask for the next band.

A band depends on the length of rows alone, and a row has the same bits in any.
"""

from __future__ import annotations

from abc import abstractmethod

from tensorbackend.codegen.nest import ROWS, Nest
from tensorbackend.codegen.render import accumulator, ctype
from tensorbackend.codegen.segments import SegmentRenderer

__all__ = ["BandRenderer"]

BAND = 16
"""Rows of a band: those that go through each pass together."""
BAND_BYTES = 24 << 10
"""Bytes of a band at most, of all that is read and stored; longer rows go one by one."""
NEAR = 1 << 12
"""Elements of a row up to which its second pass asks for the next band."""
FEW = 4
"""Rows of a band from which on what follows from their sums is computed on vectors."""
PIECE = 1024
"""Elements of a long row that are stored before as many of the next one are reduced: whole blocks (`blocks.py`), so
that sums have the same bits."""

LEAD = "(lead + r)"
"""Row r of a band."""


class BandRenderer(SegmentRenderer):
    """A dialect that can print passes over bands of rows.

    `waiting` are the values of rows that an earlier loop over the band has left in arrays, `w<value>[row of the band]`.
    `by_pieces`: what stores a row goes beside the sums of the next one.
    """

    def __init__(self, found: Nest, split: bool, by_pieces: bool) -> None:
        super().__init__(found, split)
        self.by_pieces = by_pieces
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
        """Whether rows go in bands: where there is another pass, or something follows from their reductions."""
        if self.nest.form != ROWS or self.split:
            return False
        return self.nest.passes > 1 or bool(self._stored()) or bool(self._rows_after(1))

    def _stored_values(self) -> list[int]:
        """The values that are stored for each element."""
        return [self.kernel.outputs[k][1] for k in self._stored()]

    def fits_pieces(self) -> bool:
        """Whether rows of sums can be stored by pieces: of numbers side by side, of which none waits in the output."""
        if self.nest.reduced or self.kept_value is not None:
            return False
        return self._is_contiguous(self._needed(self._stored_values()))

    def _bands(self) -> None:
        """All rows, in bands: each pass over all rows of a band before the next pass."""
        across, most = self._across(), BAND_BYTES // max(self._bytes_of_an_element(), 1)
        self.lasting = self._lasting()
        self.late = self._read_in_pass(2)
        self.say(*(f"{ctype(self.body[n].dtype)} w{n}[{BAND}] = {{0}};" for n in sorted(self.lasting)))
        if self.by_pieces:
            self._rows_by_pieces()
            return
        self.say(
            f"const int band = {across} > {most} ? 1 : {across} > {most // BAND} ? {most} / {across} : {BAND};",
            f"const int near = streams & TB_STREAM_AHEAD && {across} <= {NEAR};",
            f"const tb_i64 next = band * {across};",
        )
        self.open("for (tb_i64 lead = first; lead < last; lead += band)")
        self.say("const int rows = (int)(last - lead < band ? last - lead : band);")
        self._band_pass(1)
        self._rows_at_once(1)
        self._later_passes()
        self._band_stores()
        self._band_outputs()
        self.close()

    def _rows_by_pieces(self) -> None:
        """All rows, one by one: what stores a row, and piece by piece beside it the first pass over the next one, so
        that memory reads one row while the one before is written."""
        length = f"n{self.nest.inner}"
        self.say("enum { band = 1, near = 0 };", f"const tb_i64 next = {length} + {PIECE};")
        self.say(*(f"{accumulator(self.body[n])} part{n} = 0;" for n in self._reduced_in(1)))
        self.open("for (tb_i64 lead = first; lead <= last; ++lead)")
        self.say("const int stored = lead > first, rows = lead < last;")
        self.open(f"for (tb_i64 start = 0; start < {length}; start += {PIECE})")
        self.say(f"const tb_i64 till = {length} - start < {PIECE} ? {length} : start + {PIECE};")
        self.waiting = set(self.lasting)
        self._band_stores("stored", "(lead - 1)")
        self.open(f"if (till == {length})")
        self._band_outputs("stored", "(lead - 1)")
        self.close()
        self.waiting = set()
        self._band_pass(1)
        self.close()
        self._rows_at_once(1)
        self._later_passes()
        self.close()

    def _later_passes(self) -> None:
        for stage in range(2, self.nest.passes + 1):
            self._band_pass(stage)
            self._rows_at_once(stage)

    def _band_stores(self, rows: str = "rows", row: str = LEAD) -> None:
        """The loop that stores what is not reduced. Inside a row, a piece ends where a line of the cache does."""
        if not self._stored():
            return
        self.stage = self.nest.passes + 1
        self._each_row(self._stored_values(), rows, row)
        if self.by_pieces:
            self.say(f"const int over = {self._over_a_line()};")
            self.span = ("start ? start - over : 0", f"till < n{self.nest.inner} ? till - over : till")
        self._reduce_loops([], store=True)
        self.span = None
        self.close()

    def _bytes_of_an_element(self) -> int:
        """Bytes that all passes together read and store for one element of a row."""
        read = {i.slot for n, i in enumerate(self.body) if i.kind == "load" and self.full[n]}
        kinds = [self.kernel.inputs[slot] for slot in read] + [self.kernel.outputs[k][0] for k in self._stored()]
        return sum(ref.dtype.itemsize for ref in kinds)

    def _band_outputs(self, rows: str = "rows", row: str = LEAD) -> None:
        """Store what is reduced."""
        reduced = [value for k, (_, value) in enumerate(self.kernel.outputs) if not self._full_output(k)]
        if reduced:
            self._each_row(reduced, rows, row)
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

    def _band_pass(self, stage: int) -> None:
        """One pass over the rows of a band."""
        self.stage, here = stage, self._reduced_in(stage)
        self._each_row([a for n in here for a in self.body[n].args])
        made = [] if stage > 1 else self._given_rows()
        self._statements(made)
        if self.by_pieces and stage == 1:
            self._reduce_piece(here)
        else:
            self._reduce_pass(here)
        for n in here:
            self._finish(n, f"a{n}", f"k{n}")
        self._let_wait(self.lasting.intersection([*made, *here]))
        self.close()

    def _reduce_piece(self, here: list[int]) -> None:
        """Print what adds a piece of a row to what `part<n>` holds of it, and ends there unless it is the last."""
        for n in here:
            self._declare(n)
            self.say(f"if (start) a{n} = part{n};")
        self.span = ("start", "till")
        self._reduce_loops(here)
        self.span = None
        self.say(*(f"part{n} = a{n};" for n in here), f"if (till < n{self.nest.inner}) continue;")

    def _each_row(self, goals: list[int], rows: str = "rows", row: str = LEAD) -> None:
        """Open the loop over the rows of a band, and read what the goals need of values that wait."""
        self.open(f"for (int r = 0; r < {rows}; ++r)")
        self._row_position(self.nest.kept, row)
        self._read_waiting([*goals, *(a for n in self._needed(goals) for a in self.body[n].args)])

    # Values of rows

    def _rows_at_once(self, stage: int) -> None:
        """What follows from a pass, for whole vectors of rows: where a band has fewer, of zeros or earlier rows too.

        A few rows go one by one: a vector that is read right after its parts were written waits for all stores before.
        """
        made = self._rows_after(stage)
        if not made:
            return
        self.open(f"if (band < {FEW}) for (int r = 0; r < rows; ++r)")
        self.say("TB_ONE_BY_ONE;")
        self._follow(made)
        self.open(f"else for (int r = 0; r < {BAND}; ++r)")
        self._follow(made)

    def _follow(self, made: list[int]) -> None:
        """The values `made` of row r, and the end of the loop over r."""
        self._read_waiting([a for n in made for a in self.body[n].args if a not in made])
        self._statements(made)
        self._let_wait(self.lasting.intersection(made))
        self.close()

    def _read_waiting(self, wanted: list[int]) -> None:
        for n in sorted(self.waiting.intersection(wanted)):
            self.say(f"const {ctype(self.body[n].dtype)} v{n} = w{n}[r];")

    def _let_wait(self, made: set[int]) -> None:
        for n in sorted(made):
            self.say(f"w{n}[r] = v{n};")
        self.waiting |= made
