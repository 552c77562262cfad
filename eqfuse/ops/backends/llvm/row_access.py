"""The rows of a pass: found through the index arrays, packed, zeroed, and written back."""

import functools

from eqfuse.ops.backends.llvm.layout import NODE_ARRAYS, Copies, Key, Plan
from eqfuse.ops.backends.llvm.text import Function
from eqfuse.ops.ir.form import Index, Path


class RowsEmitter:
    """Writes what a pass does for its units and rows besides arithmetic.

    `base` are the arrays of the operands, by key, and `arrays` the index arrays, by name.
    """

    def __init__(self, plan: Plan, f: Function, copies: Copies, base, arrays):
        self.plan, self.f, self.copies, self.base, self.arrays = plan, f, copies, base, arrays
        self.own: dict[Key, str] = {}  # rows of the operands of the current unit
        self.zeroed: set[Key] = set()  # outputs that rows add to from the start
        self.streamed: dict[Key, str] = {}  # whether (i1) outputs go past the caches

    def begin_unit(self, unit: str, is_first: str = "1"):
        """Find the rows of the operands of a unit, copy what needs it, zero what is added to.

        Where a unit comes in several pieces, `is_first` (i64) is 1 for its first one, otherwise 0.
        """
        f, self.own = self.f, {}
        for key in self.plan.operands():
            if not self.plan.is_owned(key):
                continue
            operand, layout = self.plan.operand(*key), self.plan.layouts.get(key)
            if key[0] == "in" and layout is None:
                continue
            row = f.at(self.base[key], unit, self.plan.row_elements(key) * f.bytes)
            is_copied = key in self.plan.own_place
            place = f.at("%scratch", self.plan.own_place[key]) if is_copied else row
            if key[0] == "out":
                size = self.plan.scratch_size(*key) if is_copied else operand.size * f.bytes
                f.zero(place, size, is_first)
            elif is_copied:
                self.copies.call("pack", f, layout, row, place)
            self.own[key] = place

    def finish_unit(self, unit: str):
        """Write the packed outputs of a unit back."""
        f = self.f
        for key in self.own:
            if key[0] == "out" and key in self.plan.own_place:
                operand = self.plan.operand(*key)
                row = f.at(self.base[key], unit, operand.size * f.bytes)
                self._finish(key, row, self.own[key])

    def begin_row(self, unit: str, start: str, b: str):
        """Begin row b of the block at `start`."""
        f = self.f
        row = position = f.plus(start, b)
        if self.plan.reduce_over is not Index.ROW:
            row = f.load_index(self.arrays[self.plan.reduce_over.edge_arrays[0]], position)
        places = self._places(row, unit)
        for key in self.plan.operands():
            operand, layout = self.plan.operand(*key), self.plan.layouts.get(key)
            if key in self.own:
                continue
            place = position if key in self.plan.local else places[operand.index]
            if operand.table:
                place, number = self._place_in_table(operand, places[Index.ROW])
            pointer = f.at(self.base[key], place, self.plan.row_elements(key) * f.bytes)
            if key[0] == "in" and layout is None:
                self._read_shared(key[1], pointer, b)
                continue
            if key[0] == "out":
                self._keep(self.plan.results[key[1]], b, pointer)
            if key in self.plan.row_place:
                copy = f.at("%scratch", self.plan.row_place[key])
                copy = f.at(copy, b, self.plan.row_size[key])
                if operand.table:
                    self.copies.interpolate(f, layout, pointer, number, copy)
                elif key[0] == "in":
                    self.copies.call("pack", f, layout, pointer, copy)
                pointer = copy
            if key[0] == "out" and (key in self.zeroed or self.plan.has_gaps(key)):
                size = self.plan.row_size.get(key, operand.size * f.bytes)
                f.zero(pointer, size)
            self._keep(self.plan.pointers[key], b, pointer)
        if self.plan.ahead:
            self._find_next_row(position, unit, b)

    def _place_in_table(self, operand, row: str) -> tuple[str, str]:
        """Return the interval of a row, one of those of the table, and the number in it."""
        f = self.f
        place = f.at(self.base["in", self.plan.place], row, 2 * f.bytes)
        interval = f.value(f"fptosi {f.vector(1)} {f.load(place)} to i64")
        last = str(operand.table.intervals - 1)
        return f.minimum(f.maximum(interval, "0"), last), f.load(f.at(place, f.bytes))

    def _places(self, row: str, unit: str) -> dict[Index, str]:
        """Return the addresses of the rows of operands, by their index."""
        places = {Index.ROW: row, Index.SHARED: "0"}
        places[self.plan.reduce_over] = row if self.plan.reduce_over is Index.ROW else unit
        for index, name in NODE_ARRAYS.items():
            if name in self.arrays and index not in places:
                places[index] = self.f.load_index(self.arrays[name], row)
        return places

    def _find_next_row(self, position: str, unit: str, b: str):
        """Find the rows of the operands one block further on, also where another unit has them.

        No processor foresees rows that an index array chooses, or follows many paths in each row;
        a block is long enough for them to arrive. Near the end it is the last row.
        """
        f = self.f
        row = f.minimum(f.plus(position, self.plan.block), f.plus("%rows", -1))
        if self.plan.reduce_over is not Index.ROW:
            row = f.load_index(self.arrays[self.plan.reduce_over.edge_arrays[0]], row)
        places = self._places(row, unit)
        for key, table in self.plan.ahead.items():
            size = self.plan.row_elements(key) * f.bytes
            pointer = f.at(self.base[key], places[self.plan.operand(*key).index], size)
            self._keep(table, b, pointer)
            if key not in self.plan.layouts:  # a short row, read as a whole by `_read_shared`
                for line in range(0, size, 64):
                    f.prefetch(f.at(pointer, line))

    def begin_pass(self):
        """Find out which outputs are written past the caches: large ones, where vectors lie whole.

        A store into a cache first reads what was there, which is as much traffic again.
        """
        f = self.f
        for key in self.plan.operands():
            layout, packed = self.plan.layouts.get(key), key in self.plan.row_place
            if key[0] == "in" or not layout or self.plan.is_owned(key):
                continue
            if not layout.is_streamable() or (packed and self.plan.reduce_over is not Index.ROW):
                continue
            if not packed and not all(self.plan.is_long(s.mul) for s in layout.operand.segments):
                continue  # the choice at each store would cost more
            address = f.value(f"ptrtoint ptr {self.base[key]} to i64")
            rest = f.value(f"and i64 {address}, {self.plan.widest * f.bytes - 1}")
            whole = f.value(f"icmp eq i64 {rest}, 0")
            least = -(-self.plan.machine.streamed_bytes // (layout.operand.size * f.bytes))
            large = f.value(f"icmp sge i64 %rows, {least}")
            self.streamed[key] = f.value(f"and i1 {whole}, {large}")

    def finish_pass(self):
        """Wait for what was written past the caches, so that other threads see it."""
        if self.streamed:
            self.f.do("fence seq_cst")

    def finish_row(self, b: str):
        """Write the packed outputs of row b of the block back."""
        f = self.f
        for key in self.plan.operands():
            if key[0] == "out" and key in self.plan.row_place:
                row = self.kept(self.plan.results[key[1]], b)
                copy = self.kept(self.plan.pointers[key], b)
                if key not in self.streamed:
                    self._finish(key, row, copy)
                    continue
                layout = self.plan.layouts[key]
                f.either(
                    self.streamed[key],
                    functools.partial(self.copies.call, "stream", f, layout, row, copy),
                    functools.partial(self._finish, key, row, copy),
                )

    def _finish(self, key, row: str, copy: str):
        """Write the scratch memory of an output to its row."""
        f, operand, layout = self.f, self.plan.operand(*key), self.plan.layouts.get(key)
        if layout is not None:
            if not layout.covers_row():
                f.zero(row, operand.size * f.bytes)
            self.copies.call("unpack", f, layout, row, copy)
            return
        if not operand.is_whole:
            f.zero(row, operand.size * f.bytes)
        place = 0
        for segment in operand.segments:
            for component in range(segment.dim):
                value = f.load(f.at(copy, place), self.plan.widest, wide=True)
                total = f.sum_lanes(value, self.plan.widest)
                f.store(total, f.at(row, segment.element(0, component) * f.bytes))
                place += self.plan.sum_bytes

    def _read_shared(self, i: int, pointer: str, b: str):
        """Read components of an operand without channels into lane b of the table of numbers."""
        f, operand = self.f, self.plan.form.inputs[i]
        table = f.at(f.at("%scratch", self.plan.table), b, f.bytes)
        for (number, segment, component), row in self.plan.scalars.components.items():
            if number == i:
                place = operand.segments[segment].element(0, component) * f.bytes
                target = f.at(table, row * self.plan.widest * f.bytes)
                f.store(f.load(f.at(pointer, place)), target)

    def _keep(self, table: int, b: str, pointer: str):
        place = self.f.at(self.f.at("%scratch", table), b, 8)
        self.f.do(f"store ptr {pointer}, ptr {place}, align 8")

    def kept(self, table: int, b: str) -> str:
        return self.f.load_pointer(self.f.at(self.f.at("%scratch", table), b, 8))


class Row:
    """The operands and numbers of row `b` of a block; each pointer is loaded once."""

    def __init__(self, rows: RowsEmitter, b: str):
        self.plan, self.f, self.rows, self.b = rows.plan, rows.f, rows, b
        self._table = self.f.at(self.f.at("%scratch", self.plan.table), b, self.f.bytes)
        self._pointers: dict[int, str] = {}

    def load_pointers(self, paths: list[Path]):
        """Load what some paths need, so that it is known in all loops over their channels."""
        keys = {("in", ref.operand): None for path in paths for ref in path.factors}
        keys |= {("out", path.output.operand): None for path in paths}
        for key in keys:
            is_shared = key[0] == "in" and key not in self.plan.layouts
            if not is_shared:
                self.pointer(key)
                if key in self.plan.ahead:
                    self.pointer(key, ahead=True)

    def pointer(self, key: Key, ahead: bool = False) -> str:
        """Return the address of the row of an operand, or of the same row of the next block."""
        if key in self.rows.own:
            return self.rows.own[key]
        table = (self.plan.ahead if ahead else self.plan.pointers)[key]
        if table not in self._pointers:
            self._pointers[table] = self.rows.kept(table, self.b)
        return self._pointers[table]

    def scalar(self, lanes: int):
        """Return a function from a row of the table of numbers to its value in every lane."""
        f, stride = self.f, self.plan.widest * self.f.bytes
        return lambda number: f.splat(f.load(f.at(self._table, number * stride)), lanes)
