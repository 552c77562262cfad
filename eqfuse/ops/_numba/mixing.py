"""A mixing of channels as functions of LLVM IR: products of small matrices, without transposes.

XLA multiplies matrices fast, but a row in e3nn's mul_ir is a matrix [mul, dim] whose channels lie
apart, which it transposes before and after, and weights that each row chooses it gathers for each
row. Here rows are read where they are, one number in all lanes, the weights fill the lanes, and
only results are transposed, in registers.

A pass over rows computes the outputs by row, some rows at once. One over the rows of a matrix of
weights computes its gradient, which thus is the work of one thread and always the same sum.
"""

import dataclasses
import functools
import hashlib

from eqfuse.ops._form import Operand, Segment
from eqfuse.ops._mixing import Block, Mixing, Rows, Term, Weights
from eqfuse.ops._numba import ir
from eqfuse.ops._numba.ir import Function
from eqfuse.ops._numba.kernel import SIGNATURE, Pass
from eqfuse.ops._numba.layout import Copies, Layout, padded
from eqfuse.ops._numba.module import DATA, DTYPES, NODES, ROWS, VERSION, Entry, Module, assembled
from eqfuse.ops._numba.plan import Machine

ROWS_AT_ONCE = 4
ROWS_OF_WEIGHTS = 4
"""Of a unit of work: rows that read each weight once, rows of a matrix of weights."""


def chunks(mul: int, widest: int) -> list[tuple[int, int]]:
    """`mul` channels as vectors: (first channel, lanes), lanes a power of two."""
    found, start = [], 0
    while start < mul:
        lanes = min(widest, 1 << ((mul - start).bit_length() - 1))
        found.append((start, lanes))
        start += lanes
    return found


def groups(mul: int, widest: int, most: int) -> list[list[tuple[int, int]]]:
    """The vectors of `mul` channels, at most `most` at a time."""
    vectors = chunks(mul, widest)
    return [vectors[n : n + most] for n in range(0, len(vectors), most)]


def transposed(mixing: Mixing) -> tuple[int, ...]:
    """The weights that are read transposed: those of terms whose output is x."""
    n = len(mixing.inputs)
    return tuple(sorted({t.w for t in mixing.terms if t.x is not None and t.x.operand >= n}))


@dataclasses.dataclass(frozen=True)
class Product:
    """A term that adds to a block of rows: block `target` += scale * weights * block `source`.

    Attributes:
      source: (operand, block), or None for a bias.
      weights: "in" or "transposed", and the number of the input.
    """

    source: tuple[int, Block] | None
    weights: tuple[str, int]
    scale: float


class Generator:
    """Writes the passes of a mixing.

    Arguments of the kernel: the inputs, weights as [sets, elements]; those of `transposed`; the
    index arrays. Results: the outputs, alike; copies of the blocks that gradients of weights read
    with their channels side by side, [rows, elements].
    """

    def __init__(self, mixing: Mixing, dtype: str, machine: Machine):
        self.mixing, self.dtype, self.bytes = mixing, dtype, ir.BYTES[dtype]
        self.widest = machine.vector_bytes // self.bytes
        self.registers = machine.registers
        self.copies = Copies(dtype, self.widest)
        self.gradients: dict[int, list[Term]] = {}
        self.products: dict[int, dict[Block, list[Product]]] = {}
        for term in mixing.terms:
            self._sort(term)
        blocks = [
            (t.z.operand, mixing.operands[t.z.operand].blocks[t.z.block])
            for terms in self.gradients.values()
            for t in terms
        ]
        self.packed = [key for key in dict.fromkeys(blocks) if key[1].dim > 1]
        indexed, has_gradients = bool(mixing.num_sets), bool(self.gradients)
        self.index_arrays = ("index",) * indexed
        self.index_arrays += ("order", "offsets") * (indexed and has_gradients)
        keys = [("in", i) for i in range(len(mixing.inputs))]
        keys += [("transposed", i) for i in transposed(mixing)]
        keys += [("index", name) for name in self.index_arrays]
        self.num_arguments = len(keys)
        keys += [("out", o) for o in range(len(mixing.outputs))]
        keys += [("copy", n) for n in range(len(self.packed))]
        self.places = {key: n for n, key in enumerate(keys)}

    def _sort(self, term: Term):
        n, o = len(self.mixing.inputs), self.mixing.output_of(term)
        if isinstance(self.mixing.outputs[o], Weights):
            self.gradients.setdefault(o, []).append(term)
            return
        forward = term.z.operand >= n
        source, target = (term.x, term.z) if forward else (term.z, term.x)
        if source is not None:
            source = source.operand, self.mixing.operands[source.operand].blocks[source.block]
        weights = ("in" if forward else "transposed", term.w)
        product = Product(source, weights, term.scale)
        block = self.mixing.outputs[o].blocks[target.block]
        self.products.setdefault(o, {}).setdefault(block, []).append(product)

    def module(self) -> Module:
        passes = [self._copy_pass()] if self.packed else []
        passes += [self._rows_pass()] if self._row_outputs() else []
        passes += [self._gradient_pass(o) for o in self.gradients]
        texts = [ir.declarations(self.dtype), *self.copies.functions.values()]
        texts += [p.text for p in passes]
        text, name = assembled(texts, self._entries(), self.num_arguments, passes)
        return Module(name, text, self.index_arrays, tuple(self._copy_width(b) for _, b in self.packed))

    def _entries(self) -> list[Entry]:
        entries = []
        for side, n in self.places:
            if side == "index":
                entries.append(Entry.of_index(n))
            elif side == "copy":
                width = self._copy_width(self.packed[n][1])
                entries.append(Entry(DTYPES[self.dtype], 2, ROWS, width, DATA, f"copy {n}"))
            else:
                operand = (self.mixing.outputs if side == "out" else self.mixing.inputs)[n]
                rows = ROWS if isinstance(operand, Rows) else NODES
                name = f"{'output' if side == 'out' else 'input'} {n} of a mixing"
                entries.append(
                    Entry(DTYPES[self.dtype], 2, rows, width_of(operand), DATA, name)
                )
        return entries

    def _row_outputs(self) -> list[int]:
        return [o for o, a in enumerate(self.mixing.outputs) if isinstance(a, Rows)]

    def _copy_width(self, block: Block) -> int:
        return block.dim * padded(block.mul, self.widest)

    def _layout(self, block: Block, size: int) -> Layout:
        segment = Segment(block.offset, block.mul, block.dim, block.dim, 1)
        return Layout(Operand("rows", size, (segment,), True), (0,), True, self.widest)

    def _function(self, name: str) -> Function:
        return Function(f"define internal void @{name}{SIGNATURE}", self.dtype)

    def _array(self, f: Function, *key) -> str:
        return f.load_pointer(f.at("%buffers", self.places[key] * 8))

    def _copy_pass(self) -> Pass:
        """Blocks that gradients of weights read, to [dim, mul]."""
        f, cost = self._function("mixing_copy"), 0
        sources = [self._array(f, *self._key(i)) for i, _ in self.packed]
        targets = [self._array(f, "copy", n) for n in range(len(self.packed))]
        with f.loop("%end", start="%begin") as rows:
            for (i, block), source, target in zip(self.packed, sources, targets, strict=True):
                size, width = self.mixing.operands[i].size, self._copy_width(block)
                row = f.at(source, rows.index, size * f.bytes)
                copy = f.at(target, rows.index, width * f.bytes)
                self.copies.pack(f, self._layout(block, size), row, copy)
                cost += 4 * width // self.widest
        return Pass("mixing_copy", f.text(), 1, cost, 0, 0)

    def _key(self, operand: int):
        n = len(self.mixing.inputs)
        return ("in", operand) if operand < n else ("out", operand - n)

    # rows

    def _rows_pass(self) -> Pass:
        f = self._function("mixing_rows")
        at_once = 1 if self.mixing.num_sets else ROWS_AT_ONCE
        keys = [k for k in self.places if k[0] in ("in", "transposed", "out")]
        arrays = {key: self._array(f, *key) for key in keys}
        if self.mixing.num_sets:
            arrays["index"] = self._array(f, "index", "index")
        whole = f.value(f"sdiv i64 %rows, {at_once}")
        with f.loop("%end", start="%begin") as units:
            first = f.times(units.index, at_once)
            is_whole = f.value(f"icmp slt i64 {units.index}, {whole}")
            ones = f.value(f"select i1 {is_whole}, i64 0, i64 %rows")
            many = f.value(f"select i1 {is_whole}, i64 1, i64 0")
            cost = 0
            with f.loop(many):
                cost = self._some_rows(f, arrays, first, at_once)
            if at_once > 1:
                with f.loop(ones, start=first) as rest:
                    self._some_rows(f, arrays, rest.index, 1)
        return Pass("mixing_rows", f.text(), at_once, cost // at_once, 0, self._scratch())

    def _scratch(self) -> int:
        widths = [self._copy_width(b) for blocks in self.products.values() for b in blocks]
        return max(widths, default=0) * self.bytes * ROWS_AT_ONCE

    def _some_rows(self, f: Function, arrays, first: str, count: int) -> int:
        """All outputs of `count` rows; the vector operations that takes."""
        cost = 0
        numbers = [first, *(f.plus(first, r) for r in range(1, count))]
        sets = [f.load_index(arrays["index"], n) if "index" in arrays else "0" for n in numbers]
        for o in self._row_outputs():
            size, blocks = self.mixing.outputs[o].size, self.products.get(o, {})
            rows = [f.at(arrays["out", o], n, size * f.bytes) for n in numbers]
            if sum(b.mul * b.dim for b in blocks) < size:
                for row in rows:
                    f.zero(row, size * f.bytes)
            for block, products in blocks.items():
                together = max(1, min(count, 8 // block.dim))
                for r in range(0, count, together):
                    part = slice(r, r + together)
                    cost += self._block(
                        f, arrays, block, products, numbers[part], sets[part], rows[part], size
                    )
        return cost

    def _block(self, f, arrays, block: Block, products, numbers, sets, rows, size: int) -> int:
        """A block of some rows, the same for all their outputs' channels."""
        cost, width = 0, self._copy_width(block)
        most = max(1, (self.registers - 6) // (len(rows) * block.dim))
        for vectors in groups(block.mul, self.widest, min(most, 4)):
            keys = [(r, k, v) for r in range(len(rows)) for k in range(block.dim) for v in vectors]
            sums = {key: f.constant(0.0, key[2][1]) for key in keys}
            for product in products:
                sums = self._add(f, arrays, block, product, vectors, numbers, sets, sums)
                steps = 1 if product.source is None else product.source[1].mul
                cost += steps * len(keys)
            for (r, k, (start, lanes)), value in sums.items():
                if block.dim == 1:
                    place = f.at(rows[r], (block.offset + start) * f.bytes)
                else:
                    element = r * width + k * padded(block.mul, self.widest) + start
                    place = f.at("%scratch", element * f.bytes)
                f.store(value, place, lanes)
        if block.dim > 1:
            for r, row in enumerate(rows):
                copy = f.at("%scratch", r * width * f.bytes)
                self.copies.unpack(f, self._layout(block, size), row, copy)
        return cost

    def _add(self, f, arrays, block: Block, product: Product, vectors, numbers, sets, sums):
        """The sums with a product added: a loop over the channels of its source."""
        weights = self.mixing.inputs[product.weights[1]]
        base = arrays[product.weights]
        matrices = [f.at(base, s, width_of(weights) * f.bytes) for s in sets]
        if product.source is None:
            return {
                (r, k, (start, lanes)): f.fma(
                    f.constant(product.scale, lanes),
                    f.load(f.at(matrices[r], start * f.bytes), lanes),
                    value,
                    lanes,
                )
                for (r, k, (start, lanes)), value in sums.items()
            }
        operand, source = product.source
        size = self.mixing.operands[operand].size
        rows = [
            f.at(f.at(arrays[self._key(operand)], n, size * f.bytes), source.offset * f.bytes)
            for n in numbers
        ]
        first = [f.constant(0.0, lanes) for _, _, (_, lanes) in sums]
        kinds = [f.vector(lanes) for _, _, (_, lanes) in sums]
        with f.loop(str(source.mul), carried=first, kinds=kinds) as channels:
            shared = not self.mixing.num_sets
            loaded = {}
            for r in range(1 if shared else len(rows)):
                line = f.at(matrices[r], channels.index, block.mul * f.bytes)
                loaded[r] = {v: f.load(f.at(line, v[0] * f.bytes), v[1]) for v in vectors}
            found = []
            for r, row in enumerate(rows):
                place = f.at(row, channels.index, block.dim * f.bytes)
                for k in range(block.dim):
                    number = f.load(f.at(place, k * f.bytes))
                    for v in vectors:
                        total = channels.carried[len(found)]
                        w = loaded[0 if shared else r][v]
                        found.append(f.fma(f.splat(number, v[1]), w, total, v[1]))
            channels.next = found
        return {
            key: f.fma(f.constant(product.scale, key[2][1]), new, value, key[2][1])
            for (key, value), new in zip(sums.items(), channels.carried, strict=True)
        }

    # gradients of weights

    def _gradient_pass(self, o: int) -> Pass:
        """One unit: some rows of the matrix of one set."""
        name, weights = f"mixing_gradient_{o}", self.mixing.outputs[o]
        f = self._function(name)
        height = 1 if len(weights.shape) == 1 else weights.shape[0]
        parts = -(-height // ROWS_OF_WEIGHTS)
        cost = 0
        with f.loop("%end", start="%begin") as units:
            number_of_set = f.value(f"sdiv i64 {units.index}, {parts}")
            part = f.value(f"srem i64 {units.index}, {parts}")
            matrix = f.at(self._array(f, "out", o), number_of_set, width_of(weights) * f.bytes)
            start, stop, order = "0", "%rows", None
            if self.mixing.num_sets:
                offsets, order = self._array(f, "index", "offsets"), self._array(f, "index", "order")
                start = f.load_index(offsets, number_of_set)
                stop = f.load_index(offsets, f.plus(number_of_set, 1))
            first = f.times(part, ROWS_OF_WEIGHTS)
            left = f.value(f"sub nsw i64 {height}, {first}")
            whole = min(height, ROWS_OF_WEIGHTS)
            is_whole = f.value(f"icmp sge i64 {left}, {whole}")
            many = f.value(f"select i1 {is_whole}, i64 1, i64 0")
            ones = f.value(f"select i1 {is_whole}, i64 0, i64 {height}")
            with f.loop(many):
                cost = self._some_weights(f, o, matrix, first, whole, start, stop, order)
            if whole > 1:
                with f.loop(ones, start=first) as rest:
                    self._some_weights(f, o, matrix, rest.index, 1, start, stop, order)
        return Pass(name, f.text(), -parts, cost * parts, 0, 0)

    def _some_weights(self, f, o, matrix: str, first: str, count: int, start, stop, order) -> int:
        """`count` rows of the gradient of a matrix, over the rows that chose it."""
        terms, cost = self.gradients[o], 0
        mul = self.mixing.outputs[o].shape[-1]
        for vectors in groups(mul, self.widest, max(1, (self.registers - 8) // count)):
            keys = [(u, v) for u in range(count) for v in vectors]
            zeros = [f.constant(0.0, lanes) for _, (_, lanes) in keys]
            kinds = [f.vector(lanes) for _, (_, lanes) in keys]
            with f.loop(stop, start=start, carried=zeros, kinds=kinds) as rows:
                row = f.load_index(order, rows.index) if order else rows.index
                sums = dict(zip(keys, rows.carried, strict=True))
                for term in terms:
                    cost += self._add_outer(f, term, row, first, count, vectors, sums)
                rows.next = list(sums.values())
            for (u, (begin, lanes)), value in zip(keys, rows.carried, strict=True):
                line = f.at(matrix, f.plus(first, u), mul * f.bytes)
                f.store(value, f.at(line, begin * f.bytes), lanes)
        return cost

    def _add_outer(self, f, term: Term, row: str, first: str, count: int, vectors, sums) -> int:
        z = self.mixing.operands[term.z.operand].blocks[term.z.block]
        key = (term.z.operand, z)
        if key in self.packed:
            array, width = self._array(f, "copy", self.packed.index(key)), self._copy_width(z)
            offset, stride = 0, padded(z.mul, self.widest)
        else:
            array, width = self._array(f, *self._key(key[0])), self.mixing.operands[key[0]].size
            offset, stride = z.offset, 0
        line = f.at(f.at(array, row, width * f.bytes), offset * f.bytes)
        source = None
        if term.x is not None:
            x = self.mixing.operands[term.x.operand]
            block = x.blocks[term.x.block]
            source = f.at(self._array(f, *self._key(term.x.operand)), row, x.size * f.bytes)
            source = f.at(f.at(source, block.offset * f.bytes), first, z.dim * f.bytes)
        for k in range(z.dim):
            loaded = {v: f.load(f.at(line, (k * stride + v[0]) * f.bytes), v[1]) for v in vectors}
            for u in range(count):
                number = f.constant(term.scale)
                if source is not None:
                    value = f.load(f.at(source, (u * z.dim + k) * f.bytes))
                    number = value if term.scale == 1.0 else f.mul(value, number, 1)
                for v in vectors:
                    sums[u, v] = f.fma(f.splat(number, v[1]), loaded[v], sums[u, v], v[1])
        return count * z.dim * len(vectors)


def width_of(operand: Rows | Weights) -> int:
    """Elements of a row, or of the weights of one set."""
    if isinstance(operand, Rows):
        return operand.size
    return functools.reduce(lambda a, b: a * b, operand.shape, 1)


@functools.lru_cache(maxsize=1024)
def generate(mixing: Mixing, dtype: str, machine: Machine) -> Module:
    """The module that computes a mixing in one dtype, "float32" or "float64"."""
    return Generator(mixing, dtype, machine).module()
