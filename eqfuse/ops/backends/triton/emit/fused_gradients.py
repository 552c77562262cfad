"""The gradients of a fused op's parameters, sums over all rows, as one Triton kernel.

A program has some rows, and some channels of one segment of the product. It computes the product
again, a tile of rows at a time, and multiplies it with the cotangent of the pre-activation: the
product is never in memory. With several parts of the rows, another kernel adds up their sums.
"""

import dataclasses
import math

from eqfuse.ops.backends.triton.emit.fused_emitter import (
    ROWS,
    FusedEmitter,
    FusedKernel,
    width_for,
)
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.gates import Part
from eqfuse.ops.ir.linear_form import Term

SUMS = 96
"""Sums of gradients that a thread has, at most; one in float64 counts twice."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What a program computes: of one segment of the product, or of biases, gradients of columns.

    Attributes:
      segment: of the product; None of biases.
      columns: matrices or biases, and some of their columns each.
    """

    segment: int | None
    columns: tuple[tuple[Term, Part], ...]


def gradients(fused: Fused, wanted, dtype: str, partial: bool = False) -> FusedKernel:
    """Return the kernel of the wanted parameters' gradients, of dz: that of the pre-activation.

    It is called with num_rows and num_parts, and has `shares` programs for each part of the rows.

    Args:
      wanted: of which parameters, one at least.
      partial: whether they are [num_parts, ...] sums, in float32 or better.
    """
    return _Gradients(fused, wanted, dtype).kernel_of_all(partial)


class _Gradients(FusedEmitter):
    def __init__(self, fused: Fused, wanted, dtype: str):
        width = width_for(max(b.mul for b in fused.linear.blocks_out))
        # fewer channels than columns, so that warps have other columns, as in `FusedEmitter`
        super().__init__(fused, dtype, width // 2, width)
        self.wanted = wanted

    def scalars(self) -> tuple[str, ...]:
        return ("num_rows", "num_parts")

    def kernel_of_all(self, partial: bool) -> FusedKernel:
        """Return the whole text."""
        jobs, count = self._jobs(), max(1, self.fused.num_sets)
        self.emit("program = tl.program_id(0)")
        self.emit(f"job = program % {len(jobs)}")
        self.emit(f"rest = program // {len(jobs)}")
        self.emit(f"chunk = rest % {self.chunks}")
        self.emit(f"rest = rest // {self.chunks}")
        self.emit(f"which = rest % {count}")
        self.emit(f"part = rest // {count}")
        self.emit("rows = (num_rows + num_parts - 1) // num_parts")
        self.emit("begin = tl.minimum(part * rows, num_rows)")
        self.emit("end = tl.minimum(begin + rows, num_rows)")
        for n, job in enumerate(jobs):
            with self.block(f"if job == {n}:"):
                self._write(job)
        names = self.inputs(*(f"dz_{a}" for a in self.fused.arrays))
        inputs = [n for n in names if not (n[0] == "p" and n[1:].isdigit())]
        real = self.wide if partial else self.dtype
        outputs = {f"dp{n}": real for n, is_wanted in enumerate(self.wanted) if is_wanted}
        shares = len(jobs) * self.chunks * count
        return self.kernel("fused_gradients", "gradients of", inputs, outputs, shares)

    def _jobs(self) -> list[Job]:
        """Return what the programs compute, also of segments that no path adds to."""
        linear = self.linear
        most = SUMS * 32 * self.warps // (2 if self.dtype == "float64" else 1)
        most //= self.width * self.channels
        jobs = [Job(None, c) for c in self._columns(linear.linear_form.terms, 1, biases=True)]
        for n in range(len(self.out.segments)):
            jobs += [Job(n, c) for c in self._columns(self.terms_of(n), most)]
        return jobs

    def _columns(self, terms, most: int, biases: bool = False):
        """Return columns of the wanted parameters, so many parts of them for each job."""
        found = [
            (term, part)
            for term in terms
            if self.wanted[term.w - 1] and (term.x is None) == biases
            for number in [self.linear.block_of(term)]
            for part in Part(number, 0, self.linear.blocks_out[number].mul).cut(self.width)
        ]
        return [tuple(found[n : n + most]) for n in range(0, len(found), most)]

    def _write(self, job: Job):
        """Write the loop over tiles of rows, and the store of the sums."""
        totals = [f"total_{n}" for n in range(len(job.columns))]
        height = self.channels if job.segment is not None else self.rows
        for total in totals:
            self.emit(f"{total} = {self.zeros(height, self.width)}")
        self.lanes(self.form.inputs)
        self.emit(f"v = tl.arange(0, {self.width})[None, :]")
        with self.block(f"for at in tl.range(begin, end, {ROWS}, num_stages=1):"):
            self.rows_from("at", "end")
            self.emit("keep = present")
            if self.fused.num_sets:
                self.emit("keep = keep & (set_index == which)")
            if job.segment is None:
                self._add_rows(job, totals)
            else:
                self._add_products(job, totals)
        self._store(job, totals)

    def _cotangent(self, part: Part, k: int) -> str:
        """Return a component of a part of the pre-activation's cotangent, [ROWS, WIDTH]."""
        block, array = self.linear.blocks_out[part.block], self.linear.array_of(part.block)
        size = self.linear.linear_form.outputs[array].size
        offset = block.offset + part.first * block.dim + k
        place = f"dz_{self.fused.arrays[array]}_ptr + row * {size} + {offset} + v * {block.dim}"
        return self.factor(place, f"v < {part.mul}")

    def _add_rows(self, job: Job, totals):
        """Add the cotangents of biases."""
        for (_, part), total in zip(job.columns, totals, strict=True):
            value = self.widened(self._cotangent(part, 0))
            self.emit(f"{total} += tl.where(keep, {value}, 0.0)")

    def _add_products(self, job: Job, totals):
        """Add products of a segment with cotangents, summed over the rows of a tile."""
        self.row_pointers(self.form.inputs)
        mul = self.out.segments[job.segment].mul
        for k, component in enumerate(self.product(job.segment)):
            value = self.name(f"tl.where(keep & (lane < {mul}), {component}, 0.0)")
            for (_, part), total in zip(job.columns, totals, strict=True):
                self.add_dot(total, f"tl.trans({value})", self._cotangent(part, k))

    def _store(self, job: Job, totals):
        count = max(1, self.fused.num_sets)
        for (term, part), total in zip(job.columns, totals, strict=True):
            shape = self.linear.parameters[term.w - 1].shape
            place = (
                f"dp{term.w - 1}_ptr + (part.to(tl.int64) * {count} + which) * {math.prod(shape)}"
            )
            if job.segment is None:
                self.emit(f"{total} = tl.sum({total}, axis=0, keep_dims=True)")
                place, mask = (
                    f"{place} + {part.first} + v",
                    f"v < tl.where(chunk == 0, {part.mul}, 0)",
                )
            else:
                first, step = self.rows_of(job.segment, term)
                self.emit("u = tl.trans(lane)")
                place = f"{place} + ({first} + u * {step}) * {shape[1]} + {part.first} + v"
                mul = self.out.segments[job.segment].mul
                mask = f"(u < {mul}) & (v < {part.mul})"
            scaled = total if term.scale == 1.0 else f"{term.scale!r} * {total}"
            self.emit(f"tl.store({place}, {scaled}, mask={mask})")
