"""A linear form as the text of one Triton kernel: a list of jobs, each with some of the programs.

A job is a block of an output. For rows it is a matmul, of whose result a program computes a tile:
rows times components down, channels across. For weights, a program computes a tile of the matrix
and walks the rows in order, all or one of some parts, whose sums `reduction` adds, not atomically.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.backends.triton.text import SLICE, WARPS, DenseEmitter, power_of_two
from eqfuse.ops.ir.form import Form, Operand, SegmentRef, Term

TILE = 32
WIDE_TILE = 64
# programs of wide tiles from which on tiles are wide: two for each multiprocessor of an H100; of
# sums of at least `DEEP` terms about one, since most of their time is in reads of shared memory
MANY_PROGRAMS, DEEP_PROGRAMS, DEEP = 264, 128, 96


class Job(NamedTuple):
    """A block of an output and the terms that add to it; for weights, block is 0."""

    output: int
    block: int
    terms: list[Term]


def jobs(linear_form: Form) -> list[Job]:
    """Return the jobs of the programs of a kernel, also for blocks that no term adds to."""
    result: dict[tuple[int, int], list[Term]] = {}
    for o, operand in enumerate(linear_form.outputs):
        for b in range(1 if operand.matrix else len(operand.segments)):
            result[o, b] = []
    for term in linear_form.terms:
        slots = (s for s in (term.x, term.z) if s and s.operand >= len(linear_form.inputs))
        block = next((slot.segment for slot in slots), 0)
        result[term.output, block].append(term)
    return [Job(o, b, terms) for (o, b), terms in result.items()]


def side(size: int, widest: int) -> int:
    """Return the rows or the columns of a tile of an output that has `size` of them."""
    return min(max(power_of_two(size), SLICE), widest)


def tile(linear_form: Form, dtype: str, num_rows: int, num_parts: int) -> int:
    """Return the rows and columns of a tile, at most: a wide one reads its factors less often."""
    if dtype == "float64" or linear_form.num_sets:  # two registers for a value; few rows for a set
        return TILE
    wide = programs(linear_form, num_rows, num_parts, WIDE_TILE)
    deep = operations(linear_form, num_rows) >= 2 * DEEP * WIDE_TILE**2 * wide
    return WIDE_TILE if wide >= (DEEP_PROGRAMS if deep else MANY_PROGRAMS) else TILE


def operations(linear_form: Form, num_rows: int) -> int:
    """Return the additions and multiplications of a linear form."""
    total = 0
    for term in linear_form.terms:
        z = linear_form.operands[term.z.operand].segments[term.z.segment]
        x = linear_form.operands[term.x.operand].segments[term.x.segment].mul if term.x else 1
        total += 2 * num_rows * z.dim * z.mul * x
    return total


def programs(linear_form: Form, num_rows: int, num_parts: int, tile: int) -> int:
    """Return the number of programs of the kernel."""
    return sum(_programs(linear_form, job, num_rows, num_parts, tile) for job in jobs(linear_form))


def _programs(linear_form: Form, job: Job, num_rows: int, num_parts: int, tile: int) -> int:
    operand = linear_form.outputs[job.output]
    if shape := operand.matrix:
        tiles = -(-shape[-1] // side(shape[-1], tile))
        if len(shape) == 2:
            tiles *= -(-shape[0] // side(shape[0], tile))
        return tiles * max(linear_form.num_sets, 1) * num_parts
    block = operand.segments[job.block]
    if linear_form.num_sets:
        return num_rows * -(-block.mul // side(block.mul, WIDE_TILE))
    return -(-num_rows * block.dim // tile) * -(-block.mul // side(block.mul, tile))


# warps of a program of narrow tiles: a thread has 4 by 4 elements, and reads 8 for a term. And of
# matmuls of TF32 and of 16 bits: with more, Triton takes instructions of an H100 that want both
# factors with their terms side by side, and what is stored for them meets in one bank
FEW_WARPS = 2
TOGETHER = 2  # slices at once in a narrow tile, at most: its warps, which are few, wait less often
TURNED = 4  # slices of a transposed matrix at once, at most: a thread loads 16 bytes of a row
REDUCED = 128  # sums of parts that a program of `reduction` has: few, so that programs are many
AT_ONCE = 8  # parts that are on the way at the same time


@functools.lru_cache(maxsize=512)
def generate(linear_form: Form, dtype: str, partial: bool, tile: int = TILE) -> KernelSpec:
    """Return the kernel of a linear form, with tiles of at most so many rows and columns.

    It reads the inputs and the index of sets, if there are several; with `partial`, weights are
    [num_parts, ...] sums in float32 or better. A negative tile is one that splits factors by bits.
    """
    text = DenseEmitter(dtype, linear_form.input_precision, by_bits=tile < 0)
    tile = abs(tile)
    text.emit("program = tl.program_id(0)")
    text.emit("first = program * 0")
    for job in jobs(linear_form):
        writer = JobEmitter(linear_form, job, text, tile)
        operand = linear_form.outputs[job.output]
        (writer.weights if operand.matrix else writer.rows)(operand)
    inputs = {f"a{n}": dtype for n in range(len(linear_form.inputs))}
    inputs |= {"set_index": "int32"} if linear_form.num_sets else {}
    outputs = {
        f"o{n}": text.wide if partial and o.matrix else dtype
        for n, o in enumerate(linear_form.outputs)
    }
    note = f"{len(linear_form.terms)} matrices of a linear form"
    scalars = ("num_rows", "num_parts")
    ieee = text.input_precision == "ieee" and dtype == text.wide
    warps = WARPS if tile == WIDE_TILE and ieee else FEW_WARPS
    spec = text.spec("linear_form", note, inputs, scalars, outputs, warps)
    return dataclasses.replace(spec, coalesce=True)


class JobEmitter:
    """Writes one job."""

    def __init__(self, linear_form: Form, job: Job, text: DenseEmitter, tile: int):
        self.linear_form, self.job, self.text, self.tile = linear_form, job, text, tile

    def together(self, size: int, most: int) -> int:
        """Return the number of slices of `size` that are loaded at once, at most so many."""
        if self.tile == WIDE_TILE and most == TOGETHER:  # it has enough to do
            return 1
        return min(power_of_two(-(-size // SLICE)), most)

    def _mine(self, count: str):
        """Return lines for the programs of this job only; `number` counts them from zero."""
        self.text.emit("number = program - first")
        self.text.emit(f"count = {count}")
        self.text.emit("first += count")
        return self.text.block("if (number >= 0) & (number < count):")

    def rows(self, operand: Operand):
        linear_form, t, block = self.linear_form, self.text, operand.segments[self.job.block]
        indexed = bool(linear_form.num_sets)
        width = side(block.mul, WIDE_TILE if indexed else self.tile)
        across = -(-block.mul // width)
        height = power_of_two(block.dim) if indexed else self.tile
        down = f"((num_rows * {block.dim} + {height - 1}) // {height})"
        down = "num_rows" if indexed else down
        with self._mine(f"{down} * {across}"):
            t.emit(f"down = (number // {across}).to(tl.int64)")
            if indexed:
                t.emit("row = down")
                t.emit(f"k = tl.arange(0, {height})[:, None]")
                t.emit(f"inside = k < {block.dim}")
                t.emit("set = tl.load(set_index_ptr + row).to(tl.int64)")
            else:
                t.emit(f"row = (down * {height} + tl.arange(0, {height}))[:, None]")
                t.emit(f"k = row % {block.dim}")
                t.emit(f"row = row // {block.dim}")
                t.emit("inside = row < num_rows")
            t.emit(f"v = (number % {across}) * {width} + tl.arange(0, {width})[None, :]")
            t.emit(f"total = tl.zeros([{height}, {width}], {t.real})")
            for term in self.job.terms:
                self._add_product(term, block.mul)
            place = f"row * {operand.size} + {block.offset} + v * {block.dim} + k"
            mask = f"inside & (v < {block.mul})"
            t.emit(f"tl.store(o{self.job.output}_ptr + {place}, total, mask={mask})")

    def _add_product(self, term: Term, mul: int):
        """Add x w, or z times w transposed, to `total`."""
        linear_form, t = self.linear_form, self.text
        w = f"a{term.w}_ptr"
        shape = linear_form.inputs[term.w].matrix
        if linear_form.num_sets:
            w += f" + set * {math.prod(shape)}"
        if term.x is None:
            bias = t.load(f"{w} + v", f"inside & (k < 1) & (v < {mul})")
            t.emit(f"total += {_scaled(term.scale, bias)}")
            return
        forward = term.z.operand >= len(linear_form.inputs)
        source = term.x if forward else term.z
        rows = linear_form.inputs[source.operand]
        block = rows.segments[source.segment]
        x = f"a{source.operand}_ptr + row * {rows.size} + {block.offset} + k"
        count = self.together(block.mul, TOGETHER if forward else TURNED)
        with t.slices(block.mul, count):
            if count > 1 and not forward:
                self._add_turned(term, x, f"{w} + v * {shape[1]}", block, mul, count)
                return
            t.emit(f"u = at + tl.arange(0, {count * SLICE})")
            inside = f"inside & (u[None, :] < {block.mul})"
            left = t.factor(f"{x} + u[None, :] * {block.dim}", inside)
            u = "u[:, None]"
            # of a transposed matrix, columns side by side: rows side by side, as coalescing would
            # have them, meet in one bank of shared memory
            transposed = f"tl.max_contiguous(v * {shape[1]} + {u}, [1, 1])"
            place = f"{u} * {shape[1]} + v" if forward else transposed
            right = t.factor(f"{w} + {place}", f"({u} < {block.mul}) & (v < {mul})")
            t.emit(f"total += {t.dot(left, right, term.scale)}")

    def _add_turned(self, term: Term, x: str, w: str, block, mul: int, count: int):
        """Add z times w transposed, so many slices at once.

        A thread loads neighbours of a row of w: there is a matmul for the first of them, one for
        the second, and so on, each of a matrix that lies in another bank for each thread.
        """
        t = self.text
        u = f"at + {count} * tl.arange(0, {SLICE})" + "[{}] + " + f"tl.arange(0, {count})"
        t.emit(f"u = {u.format('None, :, None')}[None, None, :]")
        inside = f"inside[:, :, None] & (u < {block.mul})"
        left = t.factor(f"({x})[:, :, None] + u * {block.dim}", inside)
        t.emit(f"u = {u.format(':, None, None')}[None, None, :]")
        inside = f"(u < {block.mul}) & (v < {mul})[:, :, None]"
        right = t.factor(f"({w})[:, :, None] + u", inside)
        for pair in zip(t.parts(left, count), t.parts(right, count), strict=True):
            t.emit(f"total += {t.dot(*pair, term.scale)}")

    def weights(self, operand: Operand):
        linear_form, t = self.linear_form, self.text
        shape, sets = operand.matrix, max(linear_form.num_sets, 1)
        width = side(shape[-1], self.tile)
        across = -(-shape[-1] // width)
        height = side(shape[0], self.tile) if len(shape) == 2 else 1
        down = -(-shape[0] // height) if len(shape) == 2 else 1
        with self._mine(f"{across * down * sets} * num_parts"):
            t.emit("part = number % num_parts")
            t.emit("rest = number // num_parts")
            t.emit(f"v = (rest % {across}) * {width} + tl.arange(0, {width})[None, :]")
            t.emit(f"rest = rest // {across}")
            t.emit(f"u = (rest % {down}) * {height} + tl.arange(0, {height})[:, None]")
            t.emit(f"set = rest // {down}")
            t.emit("rows = (num_rows + num_parts - 1) // num_parts")
            t.emit("begin = tl.minimum(part * rows, num_rows)")
            t.emit("end = tl.minimum(begin + rows, num_rows)")
            t.emit(f"total = tl.zeros([{height}, {width}], {t.real})")
            for term in self.job.terms:
                self._add_rows(term, shape)
            place = f"(part.to(tl.int64) * {sets} + set) * {math.prod(shape)}"
            place += f" + u * {shape[1]} + v" if len(shape) == 2 else " + u + v"
            mask = f"v < {shape[-1]}"
            mask = f"(u < {shape[0]}) & ({mask})" if len(shape) == 2 else mask
            t.emit(f"tl.store(o{self.job.output}_ptr + {place}, total, mask={mask})")

    def _add_rows(self, term: Term, shape):
        """Add the product of x and z, summed over rows and components, to `total`."""
        linear_form, t = self.linear_form, self.text
        dim = linear_form.inputs[term.z.operand].segments[term.z.segment].dim
        size = self.together(2 * SLICE, TOGETHER) * SLICE
        t.emit(f"at = begin.to(tl.int64) * {dim}")
        with t.block(f"while at < end * {dim}:"):
            t.emit(f"both = at + tl.arange(0, {size})")
            t.emit(f"k = both % {dim}")
            t.emit(f"row = both // {dim}")
            t.emit("inside = row < end")
            if linear_form.num_sets:
                t.emit(
                    "inside = inside & (tl.load(set_index_ptr + row, mask=inside, other=-1) == set)"
                )
            z = self._factor(term.z, "v", shape[-1])
            if term.x is None:
                total = f"tl.sum({t.widened(z)}, axis=0, keep_dims=True)"
                t.emit(f"total += {_scaled(term.scale, total)}")
            else:
                # loaded as z is, and turned: fewer conflicts of banks of shared memory
                x = self._factor(term.x, "tl.trans(u)", shape[0])
                t.emit(f"total += {t.dot(f'tl.trans({x})', z, term.scale)}")
            t.emit(f"at += {size}")

    def _factor(self, slot: SegmentRef, channel: str, mul: int) -> str:
        """Return rows and components by channels [1, ...], of a slice of rows."""
        rows = self.linear_form.inputs[slot.operand]
        block = rows.segments[slot.segment]
        place = f"{block.offset} + {channel} * {block.dim} + k[:, None]"
        address = f"a{slot.operand}_ptr + row[:, None] * {rows.size} + {place}"
        return self.text.factor(address, f"inside[:, None] & ({channel} < {mul})")


def _scaled(scale: float, text: str) -> str:
    return text if scale == 1.0 else f"{scale!r} * {text}"


@functools.lru_cache(maxsize=512)
def reduction(sizes: tuple[int, ...], dtype: str) -> KernelSpec:
    """Return the kernel that sums arrays [num_parts, size] over parts, in order."""
    text = DenseEmitter("float64" if dtype == "float64" else "float32")
    text.emit("program = tl.program_id(0)")
    text.emit("first = program * 0")
    for n, size in enumerate(sizes):
        text.emit("number = program - first")
        text.emit(f"first += {-(-size // REDUCED)}")
        with text.block(f"if (number >= 0) & (number < {-(-size // REDUCED)}):"):
            text.emit(f"place = number * {REDUCED} + tl.arange(0, {REDUCED})")
            text.emit(f"total = tl.zeros([{REDUCED}], {text.real})")
            text.emit(f"address = a{n}_ptr + place")
            text.emit(f"inside = place < {size}")
            text.emit("part = program * 0")
            with text.block("while part < num_parts:"):
                parts = []
                for k in range(AT_ONCE):
                    mask = f"place < tl.where(part + {k} < num_parts, {size}, 0)"
                    parts.append(text.load(f"address + {k * size}", mask))
                for part in parts:
                    text.emit(f"total += {part}")
                text.emit(f"address += {AT_ONCE * size}")
                text.emit(f"part += {AT_ONCE}")
            text.emit(f"tl.store(o{n}_ptr + place, total, mask=inside)")
    inputs = {f"a{n}": text.dtype for n in range(len(sizes))}
    outputs = {f"o{n}": dtype for n in range(len(sizes))}
    return text.spec("reduction", "sums of parts", inputs, ("num_parts",), outputs)


def reduction_programs(sizes: tuple[int, ...]) -> int:
    """Return the number of programs of the reduction."""
    return sum(-(-size // REDUCED) for size in sizes)
