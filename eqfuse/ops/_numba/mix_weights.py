"""The passes of a mixing that compute gradients of weights: sums over rows of outer products.

A unit of work is some rows of one set's matrix: their sums stay in registers while the rows that
chose the set pass by. It is the work of one thread, so that the sum is always the same. Sums are
of `ROWS_TOGETHER` rows each, and those are added up: rounding errors grow with their number only.
"""

from eqfuse.ops._mixing import Term
from eqfuse.ops._numba.ir import Function
from eqfuse.ops._numba.kernel import Pass
from eqfuse.ops._numba.layout import padded
from eqfuse.ops._numba.mixing import Lanes, Layouts, width_of

HEIGHT = 4
"""Rows of a matrix of weights in a unit of work."""

ROWS_TOGETHER = 256


def write_pass(layouts: Layouts, o: int) -> Pass:
    """The pass for one output, an array of weights."""
    name, weights = f"mix_weights_{o}", layouts.mixing.outputs[o]
    f = layouts.function(name)
    num_lines = 1 if len(weights.shape) == 1 else weights.shape[0]
    height, parts = min(num_lines, HEIGHT), -(-num_lines // HEIGHT)
    writer = _Writer(layouts, f, o)
    with f.loop("%end", start="%begin") as units:
        chosen = f.value(f"sdiv i64 {units.index}, {parts}")
        first = f.times(f.value(f"srem i64 {units.index}, {parts}"), HEIGHT)
        writer.begin_set(chosen, width_of(weights))
        is_whole = f.value(f"icmp sle i64 {first}, {num_lines - height}")
        with f.loop(f.value(f"zext i1 {is_whole} to i64")):
            cost = writer.write(first, height)
        if height > 1:
            stop = f.value(f"select i1 {is_whole}, i64 {first}, i64 {num_lines}")
            with f.loop(stop, start=first) as rest:
                writer.write(rest.index, 1)
    return Pass(name, f.text(), -parts, cost * parts, 0, 0)


class _Writer:
    def __init__(self, layouts: Layouts, f: Function, o: int):
        self.layouts, self.f, self.terms = layouts, f, layouts.gradients[o]
        self.mul = layouts.mixing.outputs[o].shape[-1]
        self.result = layouts.array(f, "out", o)
        self.offsets = self.order = None
        if layouts.mixing.num_sets:
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

    def write(self, first: str, count: int) -> int:
        """`count` rows of the matrix; the vector operations that a row of the mixing costs."""
        f, cost = self.f, 0
        most = max(1, (self.layouts.registers - 8) // count)
        for vectors in self.layouts.lanes(self.mul, most):
            keys = [(u, v) for u in range(count) for v in vectors]
            places = [
                f.at(f.at(self.matrix, f.plus(first, u), self.mul * f.bytes), v[0] * f.bytes)
                for u, v in keys
            ]
            zeros = [f.constant(0.0, lanes) for _, (_, lanes) in keys]
            for (_, (_, lanes)), zero, place in zip(keys, zeros, places, strict=True):
                f.store(zero, place, lanes)
            kinds = [f.vector(lanes) for _, (_, lanes) in keys]
            with f.loop(self.stop, start=self.start, step=ROWS_TOGETHER) as parts:
                stop = f.minimum(self.stop, f.plus(parts.index, ROWS_TOGETHER))
                with f.loop(stop, start=parts.index, carried=zeros, kinds=kinds) as rows:
                    row = f.load_index(self.order, rows.index) if self.order else rows.index
                    sums = dict(zip(keys, rows.carried, strict=True))
                    for term in self.terms:
                        self._add(term, row, first, count, vectors, sums)
                        cost += self.layouts.block(term.z).dim * len(keys)
                    rows.next = list(sums.values())
                for (_, (_, n)), part, place in zip(keys, rows.carried, places, strict=True):
                    f.store(f.add(f.load(place, n), part, n), place, n)
        return cost

    def _add(self, term: Term, row: str, first: str, count: int, vectors: list[Lanes], sums):
        """The outer product of x and z of one row, with `count` channels of x."""
        f, dim = self.f, self.layouts.block(term.z).dim
        line, stride = self._channels(term, row)
        source = None
        if term.x is not None:
            size = self.layouts.mixing.operands[term.x.operand].size
            source = f.at(self.operands[term.x.operand], row, size * f.bytes)
            source = f.at(source, self.layouts.block(term.x).offset * f.bytes)
            source = f.at(source, first, dim * f.bytes)
        for k in range(dim):
            z = {v: f.load(f.at(line, (k * stride + v[0]) * f.bytes), v[1]) for v in vectors}
            for u in range(count):
                number = f.constant(term.scale)
                if source is not None:
                    x = f.load(f.at(source, (u * dim + k) * f.bytes))
                    number = x if term.scale == 1.0 else f.mul(x, number, 1)
                for v in vectors:
                    sums[u, v] = f.fma(f.splat(number, v[1]), z[v], sums[u, v], v[1])

    def _channels(self, term: Term, row: str) -> tuple[str, int]:
        """Where the channels of z lie side by side, and how far its components are apart."""
        f, block = self.f, self.layouts.block(term.z)
        key = (term.z.operand, block)
        if key not in self.layouts.packed:
            size = self.layouts.mixing.operands[term.z.operand].size
            place = f.at(self.operands[term.z.operand], row, size * f.bytes)
            return f.at(place, block.offset * f.bytes), 0
        copy = self.copies[self.layouts.packed.index(key)]
        width = self.layouts.copy_width(block)
        return f.at(copy, row, width * f.bytes), padded(block.mul, self.layouts.widest)
