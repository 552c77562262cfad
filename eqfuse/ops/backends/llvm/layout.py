"""Where the kernels find the channels of an operand: in the array itself, or in a packed copy.

Kernels read vectors of neighbouring channels of one component. A segment whose channels lie side
by side in whole vectors serves as it is; others (e3nn's mul_ir, odd multiplicities) are copied to
[component, channel], padded with zeros to whole vectors, and outputs are copied back.

For example, this packs 2x1o in float64, of which a vector has two numbers: x0 y0, z0 x1 and y1 z1
of a row become x0 x1, y0 y1 and z0 z1, the two channels of each component.

    define internal void @pack_2x3_3_1(ptr noalias %row, ptr noalias %copy) {
    ...
    %v11 = load <2 x double>, ptr %v6, align 8
    %v12 = load <2 x double>, ptr %v9, align 8
    %v13 = load <2 x double>, ptr %v10, align 8
    %v14 = shufflevector <2 x double> %v11, <2 x double> %v12, <2 x i32> <i32 0, i32 3>
    store <2 x double> %v14, ptr %v4, align 8
    %v15 = shufflevector <2 x double> %v11, <2 x double> %v13, <2 x i32> <i32 1, i32 2>
    store <2 x double> %v15, ptr %v7, align 8
    %v16 = shufflevector <2 x double> %v12, <2 x double> %v13, <2 x i32> <i32 0, i32 3>
    store <2 x double> %v16, ptr %v8, align 8
"""

import dataclasses
import functools
from itertools import compress

from eqfuse.ops._host import DEFAULT_CACHES
from eqfuse.ops.backends.llvm.text import Function
from eqfuse.ops.ir.contraction import Component, Number, split
from eqfuse.ops.ir.form import Form, Index, Operand, Segment
from eqfuse.ops.ir.program import BYTES


def lanes(mul: int, widest: int) -> int:
    """Return channels of one vector: a power of two, at most `widest`."""
    return min(widest, 1 << (mul - 1).bit_length())


def padded(mul: int, widest: int) -> int:
    """Return `mul` filled up to whole vectors."""
    n = lanes(mul, widest)
    return -(-mul // n) * n


@dataclasses.dataclass(frozen=True)
class Layout:
    """The places of the components of an operand with channels, in elements from its row."""

    operand: Operand
    segments: tuple[int, ...]  # those in use
    packed: bool  # whether the row is a packed copy
    widest: int  # lanes of the machine's vectors

    @classmethod
    def of(cls, operand: Operand, segments, widest: int) -> "Layout":
        """Return the places in the array itself, if whole vectors lie side by side there."""
        segments = tuple(sorted(segments))
        used = (operand.segments[s] for s in segments if operand.segments[s].mul > 1)
        packed = bool(operand.table) or any(
            s.channel_stride != 1 or s.mul % lanes(s.mul, widest) for s in used
        )
        return cls(operand, segments, packed, widest)

    @functools.cached_property
    def _starts(self) -> dict[int, int]:
        starts, start = {}, 0
        for number in self.segments:
            starts[number] = start
            segment = self.operand.segments[number]
            start += segment.dim * padded(segment.mul, self.widest)
        return {**starts, -1: start}

    @property
    def size(self) -> int:
        """Return elements of a row."""
        return self._starts[-1] if self.packed else self.operand.size

    def place(self, segment: int, component: int) -> int:
        """Return the address of channel 0 of a component; the other channels follow."""
        s = self.operand.segments[segment]
        if self.packed:
            return self._starts[segment] + component * padded(s.mul, self.widest)
        return s.offset + component * s.component_stride

    def is_streamable(self) -> bool:
        """Return whether the row is written in whole vectors, each at a multiple of its size."""
        widest, segments = self.widest, [self.operand.segments[n] for n in self.segments]
        whole = all(s.mul % widest == s.offset % widest == 0 for s in segments)
        if not whole or self.operand.size % widest:
            return False
        if self.packed:
            strides = [(s.channel_stride, s.component_stride) == (s.dim, 1) for s in segments]
            return self.covers_row() and all(strides)
        return all(s.dim == 1 or s.component_stride % widest == 0 for s in segments)

    def covers_row(self) -> bool:
        """Return whether the segments in use are the whole row of the operand."""
        used = (self.operand.segments[n] for n in self.segments)
        return sum(s.mul * s.dim for s in used) == self.operand.size


class Copies:
    """The functions of a module that copy segments to and from their packed form."""

    def __init__(self, dtype: str, widest: int):
        self.dtype, self.widest = dtype, widest
        self.functions: dict[str, str] = {}

    def interpolate(self, f: Function, layout: Layout, row: str, number: str, copy: str):
        """Call the functions that compute a packed row from its coefficients, see `Table`."""
        operand = layout.operand
        half = len(operand.segments) // 2
        for n in sorted({number % half for number in layout.segments}):
            mul, kinds = operand.segments[n].mul, [n + half * k in layout.segments for k in (0, 1)]
            name = (
                f"polynomials_{mul}_{operand.size}_{operand.table.order}_{sum(kinds)}{kinds[1]:d}"
            )
            if name not in self.functions:
                self.functions[name] = self._polynomials(name, mul, operand, kinds)
            source = f.at(row, operand.segments[n].offset * f.bytes)
            copies = [
                f.at(copy, layout.place(n + half * k, 0) * f.bytes) if kinds[k] else "null"
                for k in (0, 1)
            ]
            numbers = f"ptr {source}, {f.vector(1)} {number}"
            f.do(f"call void @{name}({numbers}, ptr {copies[0]}, ptr {copies[1]})")

    def _polynomials(self, name: str, mul: int, operand: Operand, kinds: list[bool]) -> str:
        """Write the polynomials of a segment, and their slopes, by Horner's rule."""
        order, n = operand.table.order, lanes(mul, self.widest)
        length, targets = padded(mul, self.widest), list(compress(("%values", "%slopes"), kinds))
        f = Function(self.dtype, n)
        f.parameters = f"ptr noalias %row, {f.vector(1)} %number, ptr noalias %values"
        f.parameters += ", ptr noalias %slopes"
        if length > mul:
            for target in targets:
                f.store(f.constant(0.0, n), f.at(target, (length - n) * f.bytes), n)
        numbers = {1: "%number", n: f.splat("%number", n)}
        for loop, step in f.vector_loops(mul):
            row = f.at("%row", loop.index, f.bytes)
            loads = (f.at(row, k * operand.size * f.bytes) for k in reversed(range(order)))
            value, *rest = (f.load(place, step) for place in loads)
            slope = f.constant(0.0, step)
            for coefficient in rest:
                slope = f.fma(slope, numbers[step], value, step)
                value = f.fma(value, numbers[step], coefficient, step)
            for target, total in zip(targets, compress((value, slope), kinds), strict=True):
                f.store(total, f.at(target, loop.index, f.bytes), step)
        return f.text(name)

    def call(self, verb: str, f: Function, layout: Layout, row: str, copy: str):
        """Call the functions that "pack" a row into its copy, or "unpack" or "stream" it back.

        "stream" goes past the caches, for a layout that `is_streamable`.
        """
        for number in layout.segments:
            s = layout.operand.segments[number]
            name = f"{verb}_{s.mul}x{s.dim}_{s.channel_stride}_{s.component_stride}"
            if name not in self.functions:
                self.functions[name] = self._function(name, s, verb)
            source = f.at(row, s.offset * f.bytes)
            target = f.at(copy, layout.place(number, 0) * f.bytes)
            f.do(f"call void @{name}(ptr {source}, ptr {target})")

    def _function(self, name: str, s: Segment, verb: str) -> str:
        to_copy = verb == "pack"
        f = Function(self.dtype, parameters="ptr noalias %row, ptr noalias %copy")
        n, length = lanes(s.mul, self.widest), padded(s.mul, self.widest)
        whole = 0
        if n > 1 and (
            s.channel_stride == 1 or (s.channel_stride, s.component_stride) == (s.dim, 1)
        ):
            whole = s.mul // n * n
        if to_copy and length > s.mul:
            for i in range(s.dim):
                zeros = f.constant(0.0, n)
                f.store(zeros, f.at("%copy", (i * length + length - n) * f.bytes), n)
        if whole:
            with f.loop(str(whole), step=n) as loop:
                self._vectors(f, s, loop.index, n, length, verb)
        if whole < s.mul:
            with f.loop(str(s.mul), start=str(whole)) as loop:
                row = f.at("%row", loop.index, s.channel_stride * f.bytes)
                copy = f.at("%copy", loop.index, f.bytes)
                for i in range(s.dim):
                    there = f.at(row, i * s.component_stride * f.bytes)
                    here = f.at(copy, i * length * f.bytes)
                    source, target = (there, here) if to_copy else (here, there)
                    f.store(f.load(source), target)
        return f.text(name)

    @staticmethod
    def _vectors(f: Function, s: Segment, channel: str, n: int, length: int, verb: str):
        """Move `n` channels of all components from one form to the other, by shuffles."""
        to_copy, store = verb == "pack", f.stream if verb == "stream" else f.store
        copy = f.at("%copy", channel, f.bytes)
        row = f.at("%row", channel, s.channel_stride * f.bytes)
        here = [f.at(copy, i * length * f.bytes) for i in range(s.dim)]
        if s.channel_stride == 1:
            there = [f.at(row, i * s.component_stride * f.bytes) for i in range(s.dim)]
            taken = [[(i, c) for c in range(n)] for i in range(s.dim)]
        else:
            there = [f.at(row, p * n * f.bytes) for p in range(s.dim)]
            if to_copy:
                taken = [[divmod(c * s.dim + i, n) for c in range(n)] for i in range(s.dim)]
            else:
                taken = [[divmod(p * n + c, s.dim)[::-1] for c in range(n)] for p in range(s.dim)]
        sources, targets = (there, here) if to_copy else (here, there)
        values = [f.load(pointer, n) for pointer in sources]
        for lanes_of, target in zip(taken, targets, strict=True):
            store(_shuffled(f, values, lanes_of, n), target, n)


def _shuffled(f: Function, values, taken, n: int) -> str:
    """Return the vector whose lane c is lane taken[c][1] of values[taken[c][0]]."""
    used = sorted({number for number, _ in taken})
    result = values[used[0]]
    if len(used) == 1 and [lane for _, lane in taken] == list(range(n)):
        return result
    mask = [lane if number == used[0] else None for number, lane in taken]
    kind = f.vector(n)
    for other in used[1:] or used[:1]:
        if other != used[0]:
            mask = [
                n + lane if number == other else m
                for (number, lane), m in zip(taken, mask, strict=True)
            ]
        text = ", ".join("i32 poison" if m is None else f"i32 {m}" for m in mask)
        result = f.value(
            f"shufflevector {kind} {result}, {kind} {values[other]}, <{n} x i32> <{text}>"
        )
        mask = [None if m is None else c for c, m in enumerate(mask)]
    return result


LONG = 2
"""Vectors of channels from which on a row is long: 32 channels of float32 with AVX-512."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the generator needs to know of a processor, and the choices that follow."""

    vector_bytes: int
    registers: int
    level2: int = DEFAULT_CACHES[0]  # bytes of the cache that a core uses
    level3: int = DEFAULT_CACHES[1]

    @property
    def streamed_bytes(self) -> int:
        """Return bytes of an output from which on the next kernel will not find it in a cache."""
        return min(8 * self.level2, self.level3 // 2)


class Scalars:
    """The numbers of a row, as rows of a table with one lane for each row of a block."""

    def __init__(self):
        self.components: dict[Component, int] = {}
        self.sums: dict[Number, int] = {}

    def row(self, number: Number) -> int:
        """Return the row of the table for a number, which is not a literal."""
        for names, _ in number:
            for name in names:
                self.components.setdefault(name, len(self.components) + len(self.sums))
        if len(number) == 1 and number[0][1] == 1.0 and len(number[0][0]) == 1:
            return self.components[number[0][0][0]]
        return self.sums.setdefault(number, len(self.components) + len(self.sums))

    @property
    def rows(self) -> int:
        return len(self.components) + len(self.sums)

    def write(self, f: Function, table: str, lanes: int):
        """Fill in the sums from the components, for all lanes of the table at once."""
        stride, known = lanes * f.bytes, {}

        def component(name):
            if name not in known:
                known[name] = f.load(f.at(table, self.components[name] * stride), lanes)
            return known[name]

        def product(names):
            if names not in known:
                known[names] = f.mul(product(names[:-1]), component(names[-1]), lanes)
            return known[names]

        for name in self.components:
            known[(name,)] = component(name)
        for number, row in self.sums.items():
            total = None
            for names, coefficient in number:
                c = f.constant(coefficient, lanes)
                p = product(names) if names else f.constant(1.0, lanes)
                total = f.mul(c, p, lanes) if total is None else f.fma(c, p, total, lanes)
            f.store(total, f.at(table, row * stride), lanes)


NODE_ARRAYS = {Index.SENDER: "senders", Index.RECEIVER: "receivers"}

Key = tuple[str, int]
"""An operand: "in" or "out", and its number."""


class Plan:
    """The operands of a pass, their layouts, and its scratch memory.

    A thread needs `scratch` bytes, at the places `own_place` (operands of a unit), `row_place`
    (operands of the rows of a block), `table` (of the scalars), `pointers` (to the rows that are
    read and written), `results` (to the rows of outputs in their arrays) and `ahead` (to the rows
    of the next block that are prefetched).
    """

    def __init__(
        self,
        form: Form,
        reduce_over: Index,
        outputs,  # numbers of those that this pass computes
        copied,  # inputs that an earlier pass has packed, with the layout of the copy
        machine: Machine,
        dtype: str,
        local=(),  # operands whose rows lie in the order in which the pass takes them
        prefetches: bool = False,  # whether a block asks for gathered rows of the next one
    ):
        self.form, self.reduce_over, self.outputs = form, reduce_over, sorted(outputs)
        self.copied, self.local = copied, frozenset(local)
        self.prefetches, self.machine, self.bytes = prefetches, machine, BYTES[dtype]
        self.widest = machine.vector_bytes // self.bytes
        self.paths = [p for p in form.paths if p.output.operand in outputs]
        self.scalars = Scalars()
        for path in self.paths:
            for _, number in split(form, path)[2]:
                if not isinstance(number, float):
                    self.scalars.row(number)
        self._choose_layouts()
        self.scratch = 0
        self._allocate_all()

    def _choose_layouts(self):
        used = {("out", o): set() for o in self.outputs}
        for path in self.paths:
            for ref in path.factors:
                used.setdefault(("in", ref.operand), set()).add(ref.segment)
            used["out", path.output.operand].add(path.output.segment)
        self.inputs = sorted(n for side, n in used if side == "in")
        if any(self.form.inputs[n].table for n in self.inputs):
            self.place = len(self.form.inputs) - 1
            self.inputs.append(self.place)
        self.layouts = {}
        for key in self.operands():
            if self.operand(*key).channels:
                known = self.copied.get(key[1]) if key[0] == "in" else None
                self.layouts[key] = known or Layout.of(self.operand(*key), used[key], self.widest)

    def _allocate_all(self):
        own, row = {}, {}
        for side, n in self.operands():
            if size := self.scratch_size(side, n):
                (own if self.is_owned((side, n)) else row)[side, n] = size
        # copies of rows take an eighth of the cache, unless they are one row
        most = self.machine.level2 // 8 // max(1, sum(row.values()))
        self.block = max(1, min(self.widest, most))
        self.own_place = {key: self._allocate(size) for key, size in own.items()}
        self.row_place = {key: self._allocate(size * self.block) for key, size in row.items()}
        self.row_size = row
        self.table = self._allocate(self.scalars.rows * self.widest * self.bytes)
        self.pointers = {key: self._allocate(8 * self.block) for key in self.operands()}
        self.results = {o: self._allocate(8 * self.block) for o in self.outputs}
        ahead = self._prefetched() if self.prefetches else []
        self.ahead = {key: self._allocate(8 * self.block) for key in ahead}

    @property
    def sum_bytes(self) -> int:
        """Return the bytes of the float64 sums over channels of one component, one in each lane."""
        return self.widest * BYTES["float64"]

    def is_summed(self, key: Key) -> bool:
        """Return whether it is an output without channels: a sum over them, of many terms."""
        return key[0] == "out" and key not in self.layouts

    def operands(self) -> list[Key]:
        return [("in", i) for i in self.inputs] + [("out", o) for o in self.outputs]

    def operand(self, side: str, n: int) -> Operand:
        return (self.form.inputs if side == "in" else self.form.outputs)[n]

    def scratch_size(self, side: str, n: int) -> int:
        """Return bytes of scratch for a row of an operand; whole cache lines."""
        layout = self.layouts.get((side, n))
        if layout is None:
            if side == "in":
                return 0
            return sum(s.dim for s in self.operand(side, n).segments) * self.sum_bytes
        if not layout.packed or self.is_copied((side, n)):
            return 0
        return -(-layout.size * self.bytes // 64) * 64

    def is_copied(self, key: Key) -> bool:
        """Return whether an earlier pass has packed it."""
        return key[0] == "in" and key[1] in self.copied

    def row_elements(self, key: Key) -> int:
        """Return elements of a row of the array that holds an operand."""
        operand = self.operand(*key)
        if operand.table:
            return operand.table.order * operand.size
        return self.copied[key[1]].size if self.is_copied(key) else operand.size

    def _allocate(self, size: int) -> int:
        place, self.scratch = self.scratch, self.scratch + -(-size // 64) * 64
        return place

    def index_arrays(self) -> list[str]:
        """Return the index arrays that this pass reads."""
        used = {self.operand(*key).index for key in self.operands()} - {self.reduce_over}
        return [*self.reduce_over.edge_arrays, *(NODE_ARRAYS[i] for i in NODE_ARRAYS if i in used)]

    def is_owned(self, key: Key) -> bool:
        """Return whether a unit of the pass is one row of it."""
        return self.operand(*key).index is self.reduce_over is not Index.ROW

    def is_long(self, mul: int) -> bool:
        """Return whether a row of so many channels is taken from one end to the other."""
        return padded(mul, self.widest) >= LONG * lanes(mul, self.widest)

    def _prefetched(self) -> list[Key]:
        """Return inputs that are read in place and prefetched: in a pass over rows, those in order.

        In other passes their rows may be far apart. There are none where short rows are written as
        well: such passes were not faster.
        """
        muls = {s.mul for layout in self.layouts.values() for s in layout.operand.segments}
        writes_rows = not all(self.is_owned(("out", o)) for o in self.outputs)
        if writes_rows and not self.is_long(max(muls, default=1)):
            return []
        rows = [("in", i) for i in self.inputs if not self.is_owned(("in", i))]
        read = [k for k in rows if k not in self.row_place]
        if self.reduce_over is Index.ROW:
            return [k for k in read if self.operand(*k).index is Index.ROW]
        return [k for k in read if self.operand(*k).index is not Index.SHARED]

    def has_gaps(self, key: Key) -> bool:
        """Return whether elements of this output are added to by no path."""
        terms = {
            (path.output.segment, components[-1])
            for path in self.paths
            if path.output.operand == key[1]
            for components, _ in path.terms
        }
        operand = self.operand(*key)
        return len(terms) < sum(s.dim for s in operand.segments) or not operand.is_whole
