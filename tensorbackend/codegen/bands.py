# SPDX-License-Identifier: Apache-2.0
"""Rows of several passes in C, in bands that stay in the first-level cache.

Each pass goes over all rows of a band before the next pass. What follows from a row's reductions is computed for all
rows of a band at once, on vectors, so that no row waits for its logarithm; and the second pass, which computes most,
has the time to ask for the next band.

A band depends on the length of rows alone, and a row has the same bits in any.
"""

from __future__ import annotations

from abc import abstractmethod

from tensorbackend.codegen.nest import ROWS, Nest
from tensorbackend.codegen.render import ctype
from tensorbackend.codegen.segments import SegmentRenderer

__all__ = ["BandRenderer"]

BAND = 16
"""Rows of a band: those that go through each pass together."""
BAND_ELEMENTS = 1 << 12
"""Elements of a band at most; longer rows go one by one."""


class BandRenderer(SegmentRenderer):
    """A dialect that can print passes over bands of rows.

    `waiting` are the values of rows that an earlier loop over the band has left in arrays, `w<value>[row of the band]`.
    """

    def __init__(self, found: Nest, split: bool) -> None:
        super().__init__(found, split)
        self.waiting: set[int] = set()

    @abstractmethod
    def _reduce_pass(self, here: list[int]) -> None:
        """Print what accumulates the reductions `here`."""

    @abstractmethod
    def _reduce_loops(self, here: list[int], store: bool = False) -> None:
        """Print the loops over the reduced axes: accumulate the reductions `here`, or store the full outputs."""

    def _given_rows(self) -> list[int]:
        """The values of a row that are known before its first pass."""
        return [n for n, i in enumerate(self.body) if not self.full[n] and not self._constant(i) and i.stage == 0]

    def _reduced_in(self, stage: int) -> list[int]:
        return [n for n in self.reductions if self.body[n].stage == stage]

    def _goes_in_bands(self) -> bool:
        """Whether rows go in bands: where something follows from their reductions that is not one value an element."""
        follows = self.nest.passes > 1 or bool(self._rows_after(1))
        return self.nest.form == ROWS and not self.split and follows

    def _bands(self) -> None:
        """Each pass over all rows of a band before the next pass."""
        across, most = self._across(), BAND_ELEMENTS
        self.say(f"const int band = {across} > {most} ? 1 : {across} > {most // BAND} ? {most} / {across} : {BAND};")
        self.say(f"const int near = streams && {across} <= {most};")
        self.late = self._read_in_pass(2)
        lasting = self._lasting()
        self.waiting = set()
        for n in sorted(lasting):
            self.say(f"{ctype(self.body[n].dtype)} w{n}[{BAND}] = {{0}};")
        self.open("for (tb_i64 lead = first; lead < last; lead += band)")
        self.say("const int rows = (int)(last - lead < band ? last - lead : band);")
        for stage in range(1, self.nest.passes + 1):
            self.stage = stage
            self._band_pass(lasting)
            self._rows_at_once(lasting)
        self.stage = self.nest.passes + 1
        self._band_outputs()
        self.close()

    def _band_outputs(self) -> None:
        """The loop that stores what is not reduced, and the one that stores what is."""
        if self._stored():
            self._each_row([self.kernel.outputs[k][1] for k in self._stored()])
            self._reduce_loops([], store=True)
            self.close()
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
        self.open("for (int r = 0; r < rows; ++r)")
        self._row_position(self.nest.kept, "(lead + r)")
        self._read_waiting([*goals, *(a for n in self._needed(goals) for a in self.body[n].args)])

    def _rows_at_once(self, lasting: set[int]) -> None:
        """What follows from a pass, for whole vectors of rows: where a band has fewer, of zeros or earlier rows too."""
        made = self._rows_after(self.stage)
        if not made:
            return
        self.open(f"for (int r = 0; r < {BAND}; ++r)")
        self._read_waiting([a for n in made for a in self.body[n].args])
        self._statements(made)
        self._let_wait(lasting.intersection(made))
        self.close()

    def _read_waiting(self, wanted: list[int]) -> None:
        for n in sorted(self.waiting.intersection(wanted)):
            self.say(f"const {ctype(self.body[n].dtype)} v{n} = w{n}[r];")

    def _let_wait(self, made: set[int]) -> None:
        for n in sorted(made):
            self.say(f"w{n}[r] = v{n};")
        self.waiting |= made
