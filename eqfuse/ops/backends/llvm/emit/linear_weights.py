"""The passes of a linear form that compute gradients of weights: sums over rows of outer products.

A unit of work is some lines of one set's matrix. It takes the rows that chose the set in parts that
stay in the cache, and for each part its lines, whose sums stay in registers meanwhile. It is the
work of one thread, so that a sum is always the same; and as sums of parts are added up, rounding
errors grow with the length and the number of parts only.
"""

from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.layout import padded
from eqfuse.ops.backends.llvm.emit.linear_layouts import Lanes, Layouts, Place, width_of
from eqfuse.ops.backends.llvm.emit.module import Axis, Pass, Units
from eqfuse.ops.ir.linear_form import Term

TOGETHER = 4
"""Lines whose sums stay in registers at the same time."""

UNITS, MOST_LINES = 8, 32
"""Units that a matrix is cut into if it is small, and lines of a unit if it is large."""

ROWS_OF_A_PART = 256


def lines_of_unit(num_lines: int) -> int:
    """Return lines of the matrix of a set in a unit of work: a multiple of `TOGETHER`."""
    lines = -(-num_lines // (UNITS * TOGETHER)) * TOGETHER
    return min(MOST_LINES, lines)


def write_pass(layouts: Layouts, o: int) -> Pass:
    """Return the pass for one output, an array of weights."""
    name, weights = f"linear_weights_{o}", layouts.linear_form.outputs[o]
    f = layouts.function(name)
    num_lines = 1 if len(weights.shape) == 1 else weights.shape[0]
    lines = lines_of_unit(num_lines)
    units_of_set = -(-num_lines // lines)
    writer = _WeightsEmitter(layouts, f, o)
    with f.loop("%end", start="%begin") as units:
        chosen = f.value(f"sdiv i64 {units.index}, {units_of_set}")
        first = f.times(f.value(f"srem i64 {units.index}, {units_of_set}"), lines)
        last = f.minimum(f.plus(first, lines), str(num_lines))
        writer.begin_set(chosen, width_of(weights))
        cost = writer.write(first, last, num_lines)
    return Pass(name, f.text(), Units(Axis.NODES, units_of_set), cost)


def write_block(layouts: Layouts, o: int, f: Function, order: str | None) -> int:
    """Add the sum over rows `%begin` to `%end`, or what `order` has there; what a row costs."""
    weights = layouts.linear_form.outputs[o]
    num_lines = 1 if len(weights.shape) == 1 else weights.shape[0]
    writer = _WeightsEmitter(layouts, f, o, order)
    return writer.add("0", str(num_lines), num_lines, ("%begin", "%end"))


class _WeightsEmitter:
    def __init__(self, layouts: Layouts, f: Function, o: int, order: str | None = None):
        self.layouts, self.f, self.terms = layouts, f, layouts.gradients[o]
        self.mul = layouts.linear_form.outputs[o].shape[-1]
        scales = {t.scale for t in self.terms}
        self.scale = (len(scales) == 1 and scales.pop()) or 1.0  # of all sums, at their end
        self.matrix = self.result = layouts.array(f, "out", o)
        self.offsets, self.order, self.in_order = None, order, order is not None
        if layouts.linear_form.num_sets:
            self.offsets = layouts.array(f, "index", "offsets")
            self.order = layouts.array(f, "index", "order")
        self.copies = [layouts.array(f, "copy", n) for n in range(len(layouts.packed))]
        used = {s.operand for t in self.terms for s in (t.x, t.z) if s is not None}
        self.operands = {n: layouts.operand(f, n) for n in used}

    def begin_set(self, chosen: str, width: int):
        """Find the matrix of a set, and the rows that chose it."""
        f = self.f
        self.matrix = f.at(self.result, chosen, width * f.bytes)
        self.start, self.stop = "0", "%rows"
        if self.offsets:
            self.start = f.load_index(self.offsets, chosen)
            self.stop = f.load_index(self.offsets, f.plus(chosen, 1))

    def write(self, first: str, last: str, num_lines: int) -> int:
        """Write lines `first` to `last`; return the vector operations of a row in all lines."""
        f = self.f
        with f.loop(last, start=first) as lines:
            f.zero(f.at(self.matrix, lines.index, self.mul * f.bytes), self.mul * f.bytes)
        with f.loop(self.stop, start=self.start, step=ROWS_OF_A_PART) as parts:
            rows = parts.index, f.minimum(self.stop, f.plus(parts.index, ROWS_OF_A_PART))
            cost = self.add(first, last, num_lines, rows)
        return cost

    def add(self, first: str, last: str, num_lines: int, rows: tuple[str, str]) -> int:
        """Add the sums over some rows to lines `first` to `last`; as `write`."""
        f, together = self.f, min(num_lines, TOGETHER)
        rest = f.value(f"srem i64 {f.value(f'sub nsw i64 {last}, {first}')}, {together}")
        whole = f.value(f"sub nsw i64 {last}, {rest}")
        with f.loop(whole, start=first, step=together) as lines:
            cost = self._add_part(lines.index, together, rows)
        if num_lines % together:
            with f.loop(last, start=whole) as lines:
                self._add_part(lines.index, 1, rows)
        return cost * num_lines // together

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
        """Return where the channels of z lie side by side, and how far its components are apart."""
        f, n, block = self.f, term.z.operand, self.layouts.block(term.z)
        if (n, block) not in self.layouts.packed:
            start = self.layouts.start(f, n, self.operands[n], place)
            return f.at(start, block.offset * f.bytes), self.layouts.strides(n, block)[1]
        copy = self.copies[self.layouts.packed.index((n, block))]
        width = self.layouts.copy_width(block)
        return f.at(copy, place.position, width * f.bytes), padded(block.mul, self.layouts.widest)
