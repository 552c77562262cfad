"""The passes of a linear form: copies of what it reads, outputs by row, gradients of weights.

For each block of an output by row, sums for some rows, all components and some vectors of channels
stay in registers, while the channels of what is mixed pass by, each number in all lanes. A gradient
of weights is cut into lines of the matrix, whose sums stay in registers over some rows.

For example, the inner loop of a Linear of 4x0e, for a row that is left over: it goes over the
channels %i73 of the row %v72 and adds each number times a line of the matrix %v7 to a sum, %c73_0.

    body73:
    %v75 = mul nsw i64 %i73, 4
    %v76 = getelementptr i8, ptr %v72, i64 %v75
    %v77 = mul nsw i64 %i73, 16
    %v78 = getelementptr i8, ptr %v7, i64 %v77
    %v79 = load <4 x float>, ptr %v78, align 4
    %v80 = load float, ptr %v76, align 4
    %v81 = insertelement <4 x float> poison, float %v80, i64 0
    %v82 = shufflevector <4 x float> %v81, <4 x float> poison, <4 x i32> zeroinitializer
    %v83 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v82, <4 x float> %v79, \
      <4 x float> %c73_0)
    %i73n = add nsw i64 %i73, 1
    ...
    %v84 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> splat (float 0x3FE0000000000000), \
      <4 x float> %c73_0, <4 x float> splat (float 0x0000000000000000))
    store <4 x float> %v84, ptr %v70, align 4
"""

import dataclasses

from eqfuse.ops.backends.llvm.layout import Copies, Layout, Machine, padded
from eqfuse.ops.backends.llvm.text import (
    NODES,
    ROWS,
    Arguments,
    Function,
    KernelPasses,
    Pass,
)
from eqfuse.ops.ir.form import Form, Operand, Segment, Term
from eqfuse.ops.ir.program import BYTES

Lanes = tuple[int, int]
"""A vector of channels: the first, and how many."""

AT_ONCE = 4
"""Rows of a unit of work, and the most that are mixed together."""

MOST_NUMBERS, MOST_VECTORS = 8, 4
"""Numbers (rows times components) and vectors of channels whose products are summed together."""

TOGETHER = 4
"""Lines of a gradient whose sums stay in registers at the same time."""

UNITS, MOST_LINES = 8, 32
"""Units that a matrix is cut into if it is small, and lines of a unit if it is large."""

ROWS_OF_A_PART = 256
"""Rows whose products are summed in float32 before they are added to a gradient."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A row, and its position in the order in which a kernel takes them; i64."""

    position: str
    row: str


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """A term that adds to a block of rows: scale * weights * source."""

    source: tuple[int, Segment] | None  # (operand, block), or None for a bias
    weights: tuple[str, int]  # "in" or "transposed", and the number of the input
    scale: float


class Layouts:
    """The terms of a linear form by what they add to, and the arrays of its kernel.

    Arguments of the kernel: the inputs, weights as [sets, elements]; those of `transposed`, if all
    rows share one set; index arrays. Results: the outputs, alike; copies, [rows, elements], of the
    blocks of rows that gradients of weights read with their channels side by side; those of
    `transposed`, where rows choose their sets, of which the kernel transposes those that are
    chosen.

    In a program of rows, `load(f, side, number)` finds the arrays in its own table. Rows of `local`
    inputs and outputs, by number, are those of a block that it works on: by position, not by row,
    and each component with its channels side by side.
    """

    def __init__(
        self,
        linear_form: Form,
        dtype: str,
        machine: Machine,
        local=(),
        copies=None,
        load=None,
    ):
        self.linear_form, self.dtype, self.registers = linear_form, dtype, machine.registers
        self.local = frozenset(local)
        self.widest = machine.vector_bytes // BYTES[dtype]
        self.copies = copies or Copies(dtype, self.widest)
        self.gradients: dict[int, list[Term]] = {}
        self.products: dict[int, dict[Segment, list[MatrixProduct]]] = {}
        for term in linear_form.terms:
            self._sort(term)
        read = [(t.z.operand, self.block(t.z)) for terms in self.gradients.values() for t in terms]
        apart = (key for key in dict.fromkeys(read) if key[0] not in self.local)
        self.packed = [key for key in apart if key[1].dim > 1]
        self.arguments = Arguments(dtype)
        self.load = load or self.arguments.load
        for i, operand in enumerate(linear_form.inputs):
            self._add("in", i, operand)
        self.chosen = transposed(linear_form) if linear_form.num_sets else ()
        for i in () if self.chosen else transposed(linear_form):
            self._add("transposed", i, linear_form.inputs[i])
        if linear_form.num_sets:
            names = ("index", "order", "offsets") if self.gradients else ("index",)
            self.arguments.add_indices(names)
        self.arguments.end()
        for o, operand in enumerate(linear_form.outputs):
            self._add("out", o, operand)
        for n, (_, block) in enumerate(self.packed):
            self.arguments.add(
                ("copy", n), ROWS, self.copy_width(block), f"copy {n} of a linear form"
            )
        for i in self.chosen:
            self._add("transposed", i, linear_form.inputs[i])

    def _add(self, side: str, n: int, operand: Operand):
        rows = NODES if operand.matrix else ROWS
        self.arguments.add((side, n), rows, operand.size, f"{side} {n} of a linear form")

    def _sort(self, term: Term):
        o = term.output
        if self.linear_form.outputs[o].matrix:
            self.gradients.setdefault(o, []).append(term)
            return
        forward = term.z.operand >= len(self.linear_form.inputs)
        source, target = (term.x, term.z) if forward else (term.z, term.x)
        product = MatrixProduct(
            source and (source.operand, self.block(source)),
            ("in" if forward else "transposed", term.w),
            term.scale,
        )
        blocks = self.products.setdefault(o, {})
        blocks.setdefault(self.block(target), []).append(product)

    def block(self, slot) -> Segment:
        return self.linear_form.operands[slot.operand].segments[slot.segment]

    def operand(self, f: Function, n: int) -> str:
        """Return the array of an input or an output."""
        inputs = len(self.linear_form.inputs)
        key = ("in", n) if n < inputs else ("out", n - inputs)
        return self.load(f, *key)

    def lanes(self, mul: int, most: int) -> list[list[Lanes]]:
        """Return `mul` channels as vectors of powers of two, at most `most` of them together."""
        result, start = [], 0
        while start < mul:
            result.append((start, min(self.widest, 1 << ((mul - start).bit_length() - 1))))
            start += result[-1][1]
        return [result[n : n + most] for n in range(0, len(result), most)]

    def start(self, f: Function, n: int, array: str, place: Place) -> str:
        """Return the address of the row at a place of an input or an output."""
        index = place.position if n in self.local else place.row
        return f.at(array, index, self.linear_form.operands[n].size * f.bytes)

    def strides(self, n: int, block: Segment) -> tuple[int, int]:
        """Return elements from a channel to the next, and from a component to the next."""
        return (1, block.mul) if n in self.local else (block.dim, 1)

    def copy_width(self, block: Segment) -> int:
        """Return elements of a block with its channels side by side, padded to whole vectors."""
        return block.dim * padded(block.mul, self.widest)

    def layout(self, block: Segment, size: int) -> Layout:
        return Layout(Operand("rows", size, (block,), True), (0,), True, self.widest)


def transposed(linear_form: Form) -> tuple[int, ...]:
    """Return the weights that are read transposed: those of terms whose output is x."""
    n = len(linear_form.inputs)
    return tuple(sorted({t.w for t in linear_form.terms if t.x is not None and t.x.operand >= n}))


def is_wide(linear_form: Form) -> bool:
    """Return whether XLA's matmuls, which are blocked for every cache, are faster."""
    dims = {b.dim for o in linear_form.operands if not o.matrix for b in o.segments}
    least = 256 if dims == {1} else 512
    shapes = [o.matrix for o in linear_form.operands if len(o.matrix) == 2]
    return not linear_form.num_sets and any(min(s) >= least for s in shapes)


def write_copies(layouts: Layouts, f: Function, order: str | None = None) -> int:
    """Copy the blocks of `packed` to [dim, mul]; what that costs a row.

    Rows `%begin` to `%end`, or what `order` has there; copies are in that order.
    """
    cost = 0
    sources = [layouts.operand(f, n) for n, _ in layouts.packed]
    targets = [layouts.load(f, "copy", n) for n in range(len(layouts.packed))]
    with f.loop("%end", start="%begin") as rows:
        row = f.load_index(order, rows.index) if order else rows.index
        for (n, block), source, target in zip(layouts.packed, sources, targets, strict=True):
            size, width = layouts.linear_form.operands[n].size, layouts.copy_width(block)
            copy = f.at(target, rows.index, width * f.bytes)
            row_start = layouts.start(f, n, source, Place(rows.index, row))
            layouts.copies.call("pack", f, layouts.layout(block, size), row_start, copy)
            cost += 4 * width // layouts.widest
    return cost


def write_rows(
    layouts: Layouts, f: Function, first: str, stop: str, order: str | None = None
) -> int:
    """Write the outputs of rows `first` to `stop`, and return the vector operations of one row.

    With an `order`, these are positions in it.
    """
    writer, outputs = _RowsEmitter(layouts, f, order), enumerate(layouts.linear_form.outputs)
    return sum(writer.write(n, o.size, first, stop) for n, o in outputs if not o.matrix)


def scratch(layouts: Layouts) -> int:
    """Return elements of scratch memory that `write_rows` needs."""
    blocks = [block for result in layouts.products.values() for block in result]
    return max((layouts.copy_width(b) for b in blocks), default=0) * AT_ONCE


class _RowsEmitter:
    def __init__(self, layouts: Layouts, f: Function, order: str | None):
        self.layouts, self.linear_form, self.f, self.order = layouts, layouts.linear_form, f, order
        wanted = [("in", n) for n in range(len(self.linear_form.inputs))]
        wanted += [("transposed", n) for n in transposed(self.linear_form)]
        wanted += [("out", n) for n in range(len(self.linear_form.outputs))]
        self.arrays = {key: layouts.load(f, *key) for key in wanted}
        self.index = layouts.load(f, "index", "index") if self.linear_form.num_sets else None

    def write(self, o: int, size: int, first: str, stop: str) -> int:
        """Write output o of rows `first` to `stop`; return the vector operations of one row."""
        f, cost, n = self.f, 0, len(self.linear_form.inputs) + o
        blocks = self.layouts.products.get(o, {})
        if sum(b.mul * b.dim for b in blocks) < size:
            with f.loop(stop, start=first) as loop:
                self._begin(n, loop.index, 1)
                f.zero(self.rows[0], size * f.bytes)
        for block, products in blocks.items():
            # one row where each has weights of its own
            most = 1 if self.linear_form.num_sets else MOST_NUMBERS // block.dim
            together = max(1, min(AT_ONCE, most))
            whole = f.whole(first, stop, together)
            with f.loop(whole, start=first, step=together) as loop:
                self._begin(n, loop.index, together)
                cost += self._block(block, products, n) // together
            if together > 1:
                with f.loop(stop, start=whole) as loop:
                    self._begin(n, loop.index, 1)
                    self._block(block, products, n)
        return cost

    def _begin(self, n: int, first: str, count: int):
        """Find `count` rows: their places, their sets, and where those of output n are."""
        f = self.f
        positions = [first, *(f.plus(first, r) for r in range(1, count))]
        self.places = [
            Place(p, f.load_index(self.order, p) if self.order else p) for p in positions
        ]
        self.sets = [f.load_index(self.index, p.row) if self.index else "0" for p in self.places]
        array = self.arrays["out", n - len(self.linear_form.inputs)]
        self.rows = [self.layouts.start(f, n, array, place) for place in self.places]

    def _block(self, block: Segment, products: list[MatrixProduct], n: int) -> int:
        """Write one block of the rows of output n; return the vector operations that takes."""
        f, cost, stride = self.f, 0, padded(block.mul, self.layouts.widest)
        chosen, direct = range(len(self.rows)), block.dim == 1 or n in self.layouts.local
        most = (self.layouts.registers - 6) // (len(chosen) * block.dim)
        for vectors in self.layouts.lanes(block.mul, max(1, min(most, MOST_VECTORS))):
            keys = [(r, k, v) for r in chosen for k in range(block.dim) for v in vectors]
            sums = {key: f.constant(0.0, key[2][1]) for key in keys}
            for product in products:
                sums = self._add(block, product, vectors, sums)
                cost += len(keys) * (product.source[1].mul if product.source else 1)
            for (r, k, (start, lanes)), value in sums.items():
                if direct:
                    element = block.offset + k * block.mul + start
                    place = f.at(self.rows[r], element * f.bytes)
                else:
                    element = (r * block.dim + k) * stride + start
                    place = f.at("%scratch", element * f.bytes)
                f.store(value, place, lanes)
        if not direct:
            size = self.linear_form.operands[n].size
            for r in chosen:
                copy = f.at("%scratch", r * block.dim * stride * f.bytes)
                self.layouts.copies.call(
                    "unpack", f, self.layouts.layout(block, size), self.rows[r], copy
                )
        return cost

    def _add(
        self, block: Segment, product: MatrixProduct, vectors: list[Lanes], sums: dict
    ) -> dict:
        """Return the sums with a product added, in a loop over the channels of its source."""
        f, (_, n) = self.f, product.weights
        base, step = self.arrays[product.weights], self.linear_form.inputs[n].size * f.bytes
        matrices = {r: f.at(base, self.sets[r], step) for r, _, _ in sums}
        if product.source is None:
            scale = {v: f.constant(product.scale, v[1]) for v in vectors}
            biases = {(r, v): f.load(f.at(matrices[r], v[0] * f.bytes), v[1]) for r, _, v in sums}
            return {
                (r, k, v): f.fma(scale[v], biases[r, v], total, v[1])
                for (r, k, v), total in sums.items()
            }
        first = [f.constant(0.0, lanes) for _, _, (_, lanes) in sums]
        kinds = [f.vector(lanes) for _, _, (_, lanes) in sums]
        channel, component = self.layouts.strides(*product.source)
        n, source = product.source
        array, offset = self.arrays["in", n], source.offset * f.bytes
        rows = {
            r: f.at(self.layouts.start(f, n, array, self.places[r]), offset) for r, _, _ in sums
        }
        with f.loop(str(product.source[1].mul), carried=first, kinds=kinds) as channels:
            numbers = {r: f.at(row, channels.index, channel * f.bytes) for r, row in rows.items()}
            weights, loaded, result = {}, {}, []
            for (r, k, v), total in zip(sums, channels.carried, strict=True):
                matrix = matrices[r]  # one name for all rows, unless they have sets
                if (matrix, v) not in weights:
                    line = f.at(matrix, channels.index, block.mul * f.bytes)
                    weights[matrix, v] = f.load(f.at(line, v[0] * f.bytes), v[1])
                if (r, k) not in loaded:
                    loaded[r, k] = f.load(f.at(numbers[r], k * component * f.bytes))
                number = f.splat(loaded[r, k], v[1])
                result.append(f.fma(number, weights[matrix, v], total, v[1]))
            channels.next = result
        return {
            key: f.fma(f.constant(product.scale, key[2][1]), new, total, key[2][1])
            for (key, total), new in zip(sums.items(), channels.carried, strict=True)
        }


class WeightsEmitter:
    """Adds the gradient of an output that is weights; rows are positions in an `order`, if any."""

    def __init__(self, layouts: Layouts, f: Function, o: int, order: str | None = None):
        self.layouts, self.f, self.terms = layouts, f, layouts.gradients[o]
        matrix = layouts.linear_form.outputs[o].matrix
        self.mul, self.num_lines = matrix[-1], 1 if len(matrix) == 1 else matrix[0]
        scales = {t.scale for t in self.terms}
        self.scale = (len(scales) == 1 and scales.pop()) or 1.0  # of all sums, at their end
        self.matrix = self.result = layouts.load(f, "out", o)
        self.offsets, self.order, self.in_order = None, order, order is not None
        if layouts.linear_form.num_sets:
            self.offsets = layouts.load(f, "index", "offsets")
            self.order = layouts.load(f, "index", "order")
        self.copies = [layouts.load(f, "copy", n) for n in range(len(layouts.packed))]
        used = {s.operand for t in self.terms for s in (t.x, t.z) if s is not None}
        self.operands = {n: layouts.operand(f, n) for n in used}

    def add(self, first: str, last: str, rows: tuple[str, str]) -> int:
        """Add the sums over some rows to lines `first` to `last`; return what a row costs."""
        f, together = self.f, min(self.num_lines, TOGETHER)
        whole = f.whole(first, last, together)
        with f.loop(whole, start=first, step=together) as lines:
            cost = self._add_part(lines.index, together, rows)
        if self.num_lines % together:
            with f.loop(last, start=whole) as lines:
                self._add_part(lines.index, 1, rows)
        return cost * self.num_lines // together

    def _add_part(self, first: str, count: int, rows: tuple[str, str]) -> int:
        """Add the sums over some rows to `count` lines of the matrix."""
        f, cost = self.f, 0
        most = max(1, (self.layouts.registers - 8) // count)
        for vectors in self.layouts.lanes(self.mul, most):
            keys = [(u, v) for u in range(count) for v in vectors]
            zeros = [f.constant(0.0, lanes) for _, (_, lanes) in keys]
            kinds = [f.vector(lanes) for _, (_, lanes) in keys]
            with f.loop(rows[1], start=rows[0], carried=zeros, kinds=kinds) as loop:
                row = f.load_index(self.order, loop.index) if self.order else loop.index
                place = Place(loop.index if self.in_order else row, row)
                sums = dict(zip(keys, loop.carried, strict=True))
                for term in self.terms:
                    self._add(term, place, first, count, vectors, sums)
                    cost += self.layouts.block(term.z).dim * len(keys)
                loop.next = list(sums.values())
            for (u, (start, n)), part in zip(keys, loop.carried, strict=True):
                line = f.at(self.matrix, f.plus(first, u), self.mul * f.bytes)
                place = f.at(line, start * f.bytes)
                f.store(f.fma(f.constant(self.scale, n), part, f.load(place, n), n), place, n)
        return cost

    def _add(self, term: Term, place: Place, first: str, count: int, vectors: list[Lanes], sums):
        """Add the outer product of x and z of one row, with `count` channels of x."""
        f, dim = self.f, self.layouts.block(term.z).dim
        line, stride = self._channels(term, place)
        source = None
        if term.x is not None:
            n, block = term.x.operand, self.layouts.block(term.x)
            channel, component = self.layouts.strides(n, block)
            source = self.layouts.start(f, n, self.operands[n], place)
            source = f.at(f.at(source, block.offset * f.bytes), first, channel * f.bytes)
        for k in range(dim):
            z = {v: f.load(f.at(line, (k * stride + v[0]) * f.bytes), v[1]) for v in vectors}
            for u in range(count):
                number = f.constant(term.scale / self.scale)
                if source is not None:
                    x = f.load(f.at(source, (u * channel + k * component) * f.bytes))
                    number = x if term.scale == self.scale else f.mul(x, number, 1)
                for v in vectors:
                    sums[u, v] = f.fma(f.splat(number, v[1]), z[v], sums[u, v], v[1])

    def _channels(self, term: Term, place: Place) -> tuple[str, int]:
        """Return the address of the channels of z, and the stride of its components."""
        f, n, block = self.f, term.z.operand, self.layouts.block(term.z)
        if (n, block) not in self.layouts.packed:
            start = self.layouts.start(f, n, self.operands[n], place)
            return f.at(start, block.offset * f.bytes), self.layouts.strides(n, block)[1]
        copy = self.copies[self.layouts.packed.index((n, block))]
        width = self.layouts.copy_width(block)
        return f.at(copy, place.position, width * f.bytes), padded(block.mul, self.layouts.widest)


def write(linear_form: Form, dtype: str, machine: Machine) -> KernelPasses:
    """Return the passes that compute a linear form."""
    layouts = Layouts(linear_form, dtype, machine)
    passes = [_transposing_pass(layouts, i) for i in layouts.chosen]
    if layouts.packed:
        f = Function(dtype)
        cost = write_copies(layouts, f)
        passes.append(Pass("linear_copy", f, ROWS, row_cost=cost))
    if not all(o.matrix for o in linear_form.outputs):
        f = Function(dtype)
        stop = f.minimum(f.times("%end", AT_ONCE), "%rows")
        cost = write_rows(layouts, f, f.times("%begin", AT_ONCE), stop)
        size = scratch(layouts) * f.bytes
        passes.append(Pass("linear_rows", f, ROWS, AT_ONCE, row_cost=cost, scratch=size))
    passes += [_weights_pass(layouts, o) for o in layouts.gradients]
    return KernelPasses(layouts.arguments, layouts.copies.functions, passes)


def _transposing_pass(layouts: Layouts, i: int) -> Pass:
    """Return the pass that transposes the matrices of an input that rows choose."""
    f, operand = Function(layouts.dtype, layouts.widest), layouts.linear_form.inputs[i]
    rows, columns = operand.matrix
    source, target, index = (
        layouts.load(f, *key) for key in (("in", i), ("transposed", i), ("index", "index"))
    )
    with f.loop("%end", start="%begin") as sets:
        with f.loop("%rows", carried=["0"], kinds=["i64"]) as chosen:
            equal = f.value(f"icmp eq i64 {f.load_index(index, chosen.index)}, {sets.index}")
            chosen.next = [f.value(f"select i1 {equal}, i64 1, i64 {chosen.carried[0]}")]
        arrays = [f.at(array, sets.index, operand.size * f.bytes) for array in (source, target)]
        with f.loop(chosen.carried[0]):
            for vectors, lanes in f.vector_loops(columns):
                with f.loop(str(rows)) as lines:
                    line = f.at(arrays[0], lines.index, columns * f.bytes)
                    values = f.load(f.at(line, vectors.index, f.bytes), lanes)
                    for n in range(lanes):
                        value, place = values, f.plus(vectors.index, n)
                        if lanes > 1:
                            value = f.value(f"extractelement {f.vector(lanes)} {values}, i64 {n}")
                        place = f.at(arrays[1], place, rows * f.bytes)
                        f.store(value, f.at(place, lines.index, f.bytes))
    return Pass(f"linear_transpose_{i}", f, NODES, node_cost=operand.size)


def _weights_pass(layouts: Layouts, o: int) -> Pass:
    """Return the pass for one output, an array of weights: of some lines of the matrix of a set."""
    name, weights = f"linear_weights_{o}", layouts.linear_form.outputs[o]
    f = Function(layouts.dtype)
    writer = WeightsEmitter(layouts, f, o)
    lines_of_unit = min(MOST_LINES, -(-writer.num_lines // (UNITS * TOGETHER)) * TOGETHER)
    units_of_set = -(-writer.num_lines // lines_of_unit)
    with f.loop("%end", start="%begin") as units:
        chosen = f.value(f"sdiv i64 {units.index}, {units_of_set}")
        first = f.times(f.value(f"srem i64 {units.index}, {units_of_set}"), lines_of_unit)
        last = f.minimum(f.plus(first, lines_of_unit), str(writer.num_lines))
        writer.matrix = f.at(writer.result, chosen, weights.size * f.bytes)
        start, stop = "0", "%rows"
        if writer.offsets:
            start = f.load_index(writer.offsets, chosen)
            stop = f.load_index(writer.offsets, f.plus(chosen, 1))
        size = writer.mul * f.bytes
        with f.loop(last, start=first) as lines:
            f.zero(f.at(writer.matrix, lines.index, size), size)
        with f.loop(stop, start=start, step=ROWS_OF_A_PART) as parts:
            rows = parts.index, f.minimum(stop, f.plus(parts.index, ROWS_OF_A_PART))
            cost = writer.add(first, last, rows)
    return Pass(name, f, NODES, units_of_set, row_cost=cost)
