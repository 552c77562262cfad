"""The pass of a linear form that computes its outputs by row, some rows for each weight read.

For each block of an output, sums for some rows, all components and some vectors of channels stay
in registers, while the channels of what is mixed pass by, each number in all lanes.
"""

from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.layout import padded
from eqfuse.ops.backends.llvm.emit.linear_layouts import (
    Lanes,
    Layouts,
    MatrixProduct,
    Place,
    width_of,
)
from eqfuse.ops.backends.llvm.emit.module import Axis, Pass, Units
from eqfuse.ops.ir.linear_form import Block, LinearForm, Rows

AT_ONCE = 4
"""Rows of a unit of work, and the most that are mixed together."""

MOST_NUMBERS, MOST_VECTORS = 8, 4
"""Numbers (rows times components) and vectors of channels whose products are summed together."""


def write_pass(layouts: Layouts) -> Pass:
    f = layouts.function("linear_rows")
    stop = f.minimum(f.times("%end", AT_ONCE), "%rows")
    cost = write_rows(layouts, f, f.times("%begin", AT_ONCE), stop)
    units = Units(Axis.ROWS, AT_ONCE)
    return Pass("linear_rows", f.text(), units, cost, scratch=scratch(layouts) * f.bytes)


def write_rows(
    layouts: Layouts, f: Function, first: str, stop: str, order: str | None = None
) -> int:
    """Return rows `first` to `stop`, or what `order` has there; what one costs."""
    writer, cost = _RowsEmitter(layouts, f, order), 0
    for o, operand in enumerate(layouts.linear_form.outputs):
        if isinstance(operand, Rows):
            cost += writer.write(o, operand.size, first, stop)
    return cost


def scratch(layouts: Layouts) -> int:
    """Return elements of scratch memory that `write_rows` needs."""
    blocks = [block for result in layouts.products.values() for block in result]
    return max((layouts.copy_width(b) for b in blocks), default=0) * AT_ONCE


def rows_together(linear_form: LinearForm, block: Block) -> int:
    """Return rows that are mixed together; one where each has weights of its own."""
    return 1 if linear_form.num_sets else max(1, min(AT_ONCE, MOST_NUMBERS // block.dim))


class _RowsEmitter:
    def __init__(self, layouts: Layouts, f: Function, order: str | None):
        self.layouts, self.linear_form, self.f, self.order = layouts, layouts.linear_form, f, order
        wanted = [key for key in layouts.arguments.numbers if key[0] in ("in", "transposed", "out")]
        self.arrays = {key: layouts.array(f, *key) for key in wanted}
        self.index = layouts.array(f, "index", "index") if self.linear_form.num_sets else None

    def write(self, o: int, size: int, first: str, stop: str) -> int:
        """Write output o of rows `first` to `stop`; return the vector operations of one row."""
        f, cost, n = self.f, 0, len(self.linear_form.inputs) + o
        blocks = self.layouts.products.get(o, {})
        if sum(b.mul * b.dim for b in blocks) < size:
            with f.loop(stop, start=first) as loop:
                self._begin(n, loop.index, 1)
                f.zero(self.rows[0], size * f.bytes)
        for block, products in blocks.items():
            together = rows_together(self.linear_form, block)
            rest = f.value(f"srem i64 {f.value(f'sub nsw i64 {stop}, {first}')}, {together}")
            whole = f.value(f"sub nsw i64 {stop}, {rest}")
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

    def _block(self, block: Block, products: list[MatrixProduct], n: int) -> int:
        """Return one block of the rows of output n; the vector operations that takes."""
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
                self.layouts.copies.unpack(f, self.layouts.layout(block, size), self.rows[r], copy)
        return cost

    def _add(self, block: Block, product: MatrixProduct, vectors: list[Lanes], sums: dict) -> dict:
        """Return the sums with a product added, in a loop over the channels of its source."""
        f, (_, n) = self.f, product.weights
        base, step = self.arrays[product.weights], width_of(self.linear_form.inputs[n]) * f.bytes
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
        rows = self._sources(product, sums)
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

    def _sources(self, product: MatrixProduct, sums: dict) -> dict[int, str]:
        """Return where the block that is mixed starts, by row."""
        f, (n, block) = self.f, product.source
        array, offset = self.arrays["in", n], block.offset * f.bytes
        return {
            r: f.at(self.layouts.start(f, n, array, self.places[r]), offset) for r, _, _ in sums
        }
