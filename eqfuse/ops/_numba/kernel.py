"""A form as functions of LLVM IR: which passes over the graph, and what a pass does.

A pass owns the receivers, the senders or the rows. It takes one node after the other (or one block
of rows), and the edges of a node in blocks. The numbers that no channel enters are computed for a
block at once, one edge in each lane. Then every group of paths runs over the channels, and inside
over the edges of the block: sums of the node stay in registers from edge to edge, channels fill the
lanes. Every node and row is computed by one thread, in an order that depends on nothing else.
"""

import dataclasses
import functools

from eqfuse.ops._body import ordered_groups
from eqfuse.ops._form import Form, Index, Path
from eqfuse.ops._numba.contract import Contraction, Scalars, split
from eqfuse.ops._numba.ir import Function
from eqfuse.ops._numba.layout import Copies, Layout, lanes, padded

OWNER_ARRAYS = {
    Index.RECEIVER: ("receiver_order", "receiver_ptr"),
    Index.SENDER: ("sender_order", "sender_ptr"),
    Index.ROW: (),
}
NODE_ARRAYS = {Index.SENDER: "senders", Index.RECEIVER: "receivers"}
SIGNATURE = "(ptr %buffers, i64 %begin, i64 %end, i64 %rows, ptr %scratch)"
SCRATCH = 1 << 18
"""Bytes of copies of rows that a block may hold, unless it is one row."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the generator needs to know of a processor."""

    vector_bytes: int
    registers: int


@dataclasses.dataclass(frozen=True)
class Pass:
    """One function of a kernel.

    Attributes:
      name, text: of the function, which computes units `begin` to `end`.
      block: rows of a unit; 0 where a unit is a node.
      row_cost, node_cost: vector operations of a row, and of a node.
      scratch: bytes of memory that a thread needs.
    """

    name: str
    text: str
    block: int
    row_cost: int
    node_cost: int
    scratch: int


class Buffers:
    """The numbers of the arrays in the table of pointers that every pass is given."""

    def __init__(self):
        self.numbers: dict[tuple, int] = {}

    def load(self, f: Function, *key) -> str:
        return f.load_pointer(f.at("%buffers", self.numbers[key] * 8))


def owners(form: Form) -> dict[Index, list[int]]:
    """The outputs of each pass; outputs by row go along with those of the senders or receivers."""
    found: dict[Index, list[int]] = {}
    for o, operand in enumerate(form.outputs):
        found.setdefault(operand.index, []).append(o)
    rows = found.pop(Index.ROW, [])
    if rows:
        host = next((i for i in (Index.SENDER, Index.RECEIVER) if i in found), Index.ROW)
        found.setdefault(host, []).extend(rows)
    return found


class MainPass:
    """Writes the pass that computes the outputs of one owner.

    Args:
      form, owner, outputs: the outputs (numbers) of the form that this pass computes.
      copied: inputs that an earlier pass has packed, with the layout of the copy.
    """

    def __init__(self, form, owner, outputs, copied, buffers, copies, machine, name):
        self.form, self.owner, self.outputs, self.copied = form, owner, sorted(outputs), copied
        self.buffers, self.copies, self.machine, self.name = buffers, copies, machine, name
        self.f = Function(f"define internal void @{name}{SIGNATURE}", copies.dtype)
        self.widest = machine.vector_bytes // self.f.bytes
        self.paths = [p for p in form.paths if p.output.operand in outputs]
        self.scalars = Scalars()
        for path in self.paths:
            for _, number in split(form, path)[2]:
                if any(names for names, _ in number):
                    self.scalars.row(number)
        self.cost = len(self.scalars.sums) // self.widest + 1
        self.begun: set[tuple[int, int, int]] = set()
        self.scratch = 0
        self._plan()

    def _plan(self):
        """Layouts, and the scratch memory: of the node, of the block, of each row of the block."""
        form, used, written = self.form, {}, {o: set() for o in self.outputs}
        for path in self.paths:
            for slot in path.factors:
                used.setdefault(slot.operand, set()).add(slot.segment)
            written[path.output.operand].add(path.output.segment)
        self.inputs = sorted(used)
        self.layouts = {}
        for i in self.inputs:
            operand = form.inputs[i]
            if operand.channels:
                self.layouts["in", i] = self.copied.get(i) or Layout.of(
                    operand, used[i], self.widest
                )
        for o in self.outputs:
            operand = form.outputs[o]
            if operand.channels:
                self.layouts["out", o] = Layout.of(operand, written[o], self.widest)

        own, row = {}, {}
        for side, n in self._operands():
            operand, size = self._operand(side, n), self._scratch_size(side, n)
            if size:
                (own if operand.index is self.owner is not Index.ROW else row)[side, n] = size
        self.block = max(1, min(self.widest, SCRATCH // max(1, sum(row.values()))))
        self.own_place = {key: self._allocate(size) for key, size in own.items()}
        self.row_place = {key: self._allocate(size * self.block) for key, size in row.items()}
        self.row_size = row
        self.table = self._allocate(self.scalars.rows * self.widest * self.f.bytes)
        self.pointers = {key: self._allocate(8 * self.block) for key in self._operands()}
        self.results = {o: self._allocate(8 * self.block) for o in self.outputs}

    def _operands(self):
        return [("in", i) for i in self.inputs] + [("out", o) for o in self.outputs]

    def _operand(self, side, n):
        return (self.form.inputs if side == "in" else self.form.outputs)[n]

    def _scratch_size(self, side, n) -> int:
        """Bytes of scratch for a row of an operand; whole cache lines."""
        layout = self.layouts.get((side, n))
        if layout is None:
            if side == "in":
                return 0
            return sum(s.dim for s in self._operand(side, n).segments) * self.machine.vector_bytes
        if not layout.packed or self._copied((side, n)):
            return 0
        return -(-layout.size * self.f.bytes // 64) * 64

    def _copied(self, key) -> bool:
        return key[0] == "in" and key[1] in self.copied

    def _row_size(self, key) -> int:
        """Elements of a row of the array that holds an operand."""
        return self.copied[key[1]].size if self._copied(key) else self._operand(*key).size

    def _allocate(self, size: int) -> int:
        place, self.scratch = self.scratch, self.scratch + -(-size // 64) * 64
        return place

    def index_arrays(self) -> list[str]:
        """The index arrays that this pass reads."""
        used = {self._operand(*key).index for key in self._operands()} - {self.owner, Index.ROW}
        return [*OWNER_ARRAYS[self.owner], *(NODE_ARRAYS[i] for i in NODE_ARRAYS if i in used)]

    def written(self) -> Pass:
        """The function."""
        f = self.f
        self.base = {
            key: self.buffers.load(f, "copy" if self._copied(key) else key[0], key[1])
            for key in self._operands()
        }
        self.arrays = {name: self.buffers.load(f, "index", name) for name in self.index_arrays()}
        with f.loop("%end", start="%begin") as units:
            self.unit = units.index
            if self.owner is Index.ROW:
                start = f.times(self.unit, self.block)
                stop = f.minimum(f.plus(start, self.block), "%rows")
            else:
                ptr = self.arrays[OWNER_ARRAYS[self.owner][1]]
                start = f.load_index(ptr, self.unit)
                stop = f.load_index(ptr, f.plus(self.unit, 1))
            self._begin_unit()
            with f.loop(stop, start=start, step=self.block) as blocks:
                self.start = blocks.index
                self.count = f.minimum(
                    f.value(f"sub nsw i64 {stop}, {blocks.index}"), str(self.block)
                )
                with f.loop(self.count) as rows:
                    self._begin_row(rows.index)
                self.scalars.write(f, f.at("%scratch", self.table), self.widest)
                for group in self._groups():
                    self._group(group)
                if any(key in self.row_place and key[0] == "out" for key in self._operands()):
                    with f.loop(self.count) as rows:
                        self._finish_row(rows.index)
            self._finish_unit()
        block = self.block if self.owner is Index.ROW else 0
        return Pass(self.name, f.text(), block, self.cost, 0, self.scratch)

    def _owned(self, key) -> bool:
        return self._operand(*key).index is self.owner is not Index.ROW

    def _begin_unit(self):
        f, self.own = self.f, {}
        for key in self._operands():
            if not self._owned(key):
                continue
            operand, layout = self._operand(*key), self.layouts.get(key)
            if key[0] == "in" and layout is None:
                continue
            row = f.at(self.base[key], self.unit, self._row_size(key) * f.bytes)
            if key in self.own_place:
                copy = f.at("%scratch", self.own_place[key])
                if key[0] == "in":
                    self.copies.pack(f, layout, row, copy)
                else:
                    f.zero(copy, self._scratch_size(*key))
                self.own[key] = copy
            else:
                if key[0] == "out":
                    f.zero(row, operand.size * f.bytes)
                self.own[key] = row

    def _finish_unit(self):
        f = self.f
        for key in self.own:
            if key[0] == "out" and key in self.own_place:
                operand = self._operand(*key)
                row = f.at(self.base[key], self.unit, operand.size * f.bytes)
                self._finish(key, row, self.own[key])

    def _finish(self, key, row: str, copy: str):
        """From the scratch memory of an output to its row."""
        f, operand, layout = self.f, self._operand(*key), self.layouts.get(key)
        if layout is not None:
            if not layout.covers_row():
                f.zero(row, operand.size * f.bytes)
            self.copies.unpack(f, layout, row, copy)
            return
        place = 0
        for segment in operand.segments:
            for component in range(segment.dim):
                value = f.load(f.at(copy, place), self.widest)
                total = f.sum_lanes(value, self.widest)
                f.store(total, f.at(row, segment.element(0, component) * f.bytes))
                place += self.machine.vector_bytes

    def _begin_row(self, b: str):
        """Find the rows of all operands, copy what needs it, zero what is added to."""
        f = self.f
        row = f.plus(self.start, b)
        if self.owner is not Index.ROW:
            row = f.load_index(self.arrays[OWNER_ARRAYS[self.owner][0]], row)
        places = {Index.ROW: row, self.owner: row if self.owner is Index.ROW else self.unit}
        for index, name in NODE_ARRAYS.items():
            if name in self.arrays and index not in places:
                places[index] = f.load_index(self.arrays[name], row)
        for key in self._operands():
            operand, layout = self._operand(*key), self.layouts.get(key)
            if key in self.own:
                continue
            pointer = f.at(self.base[key], places[operand.index], self._row_size(key) * f.bytes)
            if key[0] == "in" and layout is None:
                self._read_shared(key[1], pointer, b)
                continue
            if key[0] == "out":
                self._keep(self.results[key[1]], b, pointer)
            if key in self.row_place:
                copy = f.at("%scratch", self.row_place[key])
                copy = f.at(copy, b, self.row_size[key])
                if key[0] == "in":
                    self.copies.pack(f, layout, pointer, copy)
                pointer = copy
            if key[0] == "out" and (layout is None or self._has_gaps(key)):
                size = self.row_size.get(key, operand.size * f.bytes)
                f.zero(pointer, size)
            self._keep(self.pointers[key], b, pointer)

    def _has_gaps(self, key) -> bool:
        """Whether components of this output are added to by no path."""
        terms = {
            (path.output.segment, components[-1])
            for path in self.paths
            if path.output.operand == key[1]
            for components, _ in path.terms
        }
        return len(terms) < sum(s.dim for s in self._operand(*key).segments)

    def _keep(self, table: int, b: str, pointer: str):
        place = self.f.at(self.f.at("%scratch", table), b, 8)
        self.f.do(f"store ptr {pointer}, ptr {place}, align 8")

    def _kept(self, table: int, b: str) -> str:
        return self.f.load_pointer(self.f.at(self.f.at("%scratch", table), b, 8))

    def _read_shared(self, i: int, pointer: str, b: str):
        """Components of an operand without channels into lane b of the table of numbers."""
        f, operand = self.f, self.form.inputs[i]
        table = f.at(f.at("%scratch", self.table), b, f.bytes)
        for (number, segment, component), row in self.scalars.components.items():
            if number == i:
                place = operand.segments[segment].element(0, component) * f.bytes
                target = f.at(table, row * self.widest * f.bytes)
                f.store(f.load(f.at(pointer, place)), target)

    def _finish_row(self, b: str):
        for key in self._operands():
            if key[0] == "out" and key in self.row_place:
                row, copy = self._kept(self.results[key[1]], b), self._kept(self.pointers[key], b)
                self._finish(key, row, copy)

    def _mul(self, path: Path) -> int:
        operands = [(self.form.inputs[s.operand], s.segment) for s in path.factors]
        return next((o.segments[s].mul for o, s in operands if o.channels), 1)

    def _accumulators(self, paths) -> list[tuple[int, int, int]]:
        """Components of owned outputs, which stay in registers through a block."""
        found = {}
        for path in paths:
            if self._owned(("out", path.output.operand)):
                for components, _ in path.terms:
                    found[path.output.operand, path.output.segment, components[-1]] = None
        return sorted(found)

    def _groups(self) -> list[list[Path]]:
        """Paths that run through the channels together: same channels, and sums that fit."""
        limit = self.machine.registers * 3 // 4
        part = Form(self.form.inputs, self.form.outputs, tuple(self.paths))
        groups: list[list[Path]] = []
        previous = None
        for shared in ordered_groups(part):
            for path in sorted(shared, key=lambda p: len(split(self.form, p)[0])):
                lead = (self._mul(path), self._lead(path))
                together = [*groups[-1], path] if lead == previous else None
                if together and len(self._accumulators(together)) <= limit:
                    groups[-1] = together
                else:
                    groups.append([path])
                previous = lead
        for group in groups:
            group.sort(key=lambda p: len(split(self.form, p)[0]))
        return groups

    def _lead(self, path: Path):
        slots = [(self.form.inputs[s.operand], s.segment) for s in path.factors]
        slots.append((self.form.outputs[path.output.operand], path.output.segment))
        return next((segment for operand, segment in slots if operand.origin == "x"), None)

    def _group(self, group: list[Path]):
        """One group: over the channels, and inside over the rows of the block."""
        f, n = self.f, lanes(self._mul(group[0]), self.widest)
        length = padded(self._mul(group[0]), self.widest)
        with f.loop(str(length), step=n) as channels:
            offset = f.times(channels.index, f.bytes)
            kept = self._accumulators(group)
            places = [self._owned_place(key, offset) for key in kept]
            first = [f.load(place, n) for place in places]
            own = self._owned_inputs(group, offset, n)
            with f.loop(self.count, carried=first, kind=f.vector(n)) as rows:
                sums = dict(zip(kept, rows.carried, strict=True))
                self._row(group, rows.index, offset, n, length // n, own, sums)
                rows.next = [sums[key] for key in kept]
            for place, value in zip(places, rows.carried, strict=True):
                f.store(value, place, n)
        self.begun |= self._row_outputs(group)

    def _owned_place(self, key, offset: str) -> str:
        o, segment, component = key
        return self._place(("out", o), segment, component, self.own["out", o], offset)

    def _place(self, key, segment: int, component: int, row: str, offset: str) -> str:
        layout = self.layouts.get(key)
        if layout is not None:
            return self.f.at(
                self.f.at(row, offset), layout.place(segment, component) * self.f.bytes
            )
        before = self._operand(*key).segments[:segment]
        number = sum(s.dim for s in before) + component
        return self.f.at(row, number * self.machine.vector_bytes)

    def _owned_inputs(self, group, offset: str, n: int) -> dict:
        """Components of the owner's inputs, read once for all rows."""
        found = {}
        for path in group:
            for position, slot in enumerate(path.factors):
                key = ("in", slot.operand)
                if key in self.own:
                    for components, _ in path.terms:
                        name = (slot.operand, slot.segment, components[position])
                        if name not in found:
                            place = self._place(key, *name[1:], self.own[key], offset)
                            found[name] = self.f.load(place, n)
        return found

    def _row_outputs(self, group) -> set[tuple[int, int, int]]:
        return {
            (path.output.operand, path.output.segment, components[-1])
            for path in group
            if ("out", path.output.operand) not in self.own
            for components, _ in path.terms
        }

    def _row(self, group, b: str, offset: str, n: int, chunks: int, own: dict, sums: dict):
        """The arithmetic of a group for one row and one vector of channels."""
        f, rows = self.f, {}
        table = f.at(f.at("%scratch", self.table), b, f.bytes)

        def row_of(key):
            if key not in rows:
                rows[key] = self._kept(self.pointers[key], b)
            return rows[key]

        def load(i, segment, component):
            if (i, segment, component) in own:
                return own[i, segment, component]
            place = self._place(("in", i), segment, component, row_of(("in", i)), offset)
            return f.load(place, n)

        def scalar(row):
            return f.splat(f.load(f.at(table, row * self.widest * f.bytes)), n)

        places = {
            (o, segment, component): self._place(
                ("out", o), segment, component, row_of(("out", o)), offset
            )
            for o, segment, component in sorted(self._row_outputs(group))
        }
        for key, place in places.items():
            shared = ("out", key[0]) not in self.layouts
            sums[key] = f.load(place, n) if shared or key in self.begun else None

        body = Contraction(self.form, f, n, self.scalars, load, scalar)
        for path in group:
            body.add_path(path, functools.partial(_accumulate, f, n, sums, path.output))
        for key, place in places.items():
            f.store(sums[key], place, n)
        self.cost += body.operations * chunks


def _accumulate(f: Function, n: int, sums: dict, output, component: int, factor, value: str):
    key = (output.operand, output.segment, component)
    total = sums[key]
    if factor is None:
        sums[key] = value if total is None else f.add(total, value, n)
    elif total is None:
        sums[key] = f.mul(factor, value, n)
    else:
        sums[key] = f.fma(factor, value, total, n)
