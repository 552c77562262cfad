"""A form as the text of one Triton kernel.

Two kinds. Over rows: a program computes a block of rows and channels. Over a graph: a program owns
a node and a block of channels, walks the edges of that node in order, keeps the sums of the node in
registers and stores them once; so nothing is added atomically and results are repeatable bit for
bit. Every thread holds one channel, and the coefficients are literals.
"""

import dataclasses

from eqfuse.ops.backends.triton.emit.arithmetic import ArithmeticEmitter
from eqfuse.ops.backends.triton.emit.emitter import component_name, program
from eqfuse.ops.backends.triton.emit.form_operands import WARP, OperandEmitter, Task
from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type
from eqfuse.ops.ir.operands import Index, Path

ADDED = 16
"""Sums that edge lanes add at a time, at most: each takes shared memory."""


@dataclasses.dataclass(frozen=True)
class FormKernel:
    """A kernel that computes some outputs of a form.

    It is called with the form's inputs `inputs`, the index arrays `index_arrays`, the outputs so
    far of `continued`, the scalars, and writes the form's outputs `outputs`. An output in `partial`
    has a leading axis of `channel_blocks`, to be summed. Outputs that are not finished are in
    float32 or better.
    """

    spec: KernelSpec
    inputs: tuple[int, ...]
    index_arrays: tuple[str, ...]
    continued: tuple[int, ...]
    outputs: tuple[int, ...]
    partial: tuple[int, ...]
    reduce_over: Index
    rows_per_program: int
    channel_blocks: int

    def grid(self, num_rows: int, num_nodes: int) -> tuple[int, int]:
        rows = num_rows if self.reduce_over is Index.ROW else num_nodes
        return -(-rows // self.rows_per_program), self.channel_blocks


class TaskEmitter(OperandEmitter):
    """Collects the text of one kernel."""

    def scalars(self) -> tuple[str, ...]:
        if self.over_rows:
            return ("num_rows",)
        indices = {self.form.outputs[o].index for o in self.partial}
        names = [("num_rows", Index.ROW in indices), ("num_nodes", indices - {Index.ROW})]
        return tuple(name for name, needed in names if needed)

    def spec(self) -> KernelSpec:
        self.emit_all()
        form, arrays, scalars = self.form, self.index_arrays(), self.scalars()
        before = [form.outputs[o].name for o in self.continued]
        names = [f"{form.inputs[i].name}_ptr" for i in self.inputs] + [f"{a}_ptr" for a in arrays]
        names += [f"{name}_before_ptr" for name in before] + list(scalars)
        names += [f"{form.outputs[o].name}_ptr" for o in self.outputs]
        real = pointer_type(self.task.dtype)
        sums = pointer_type(self.real.removeprefix("tl."))
        unfinished = {*self.partial, *self.task.shared}
        note = f"{sum(map(len, self.task.groups))} of the paths of:\n{form!r}"
        source = program(note, names, self.lines, self.adders)
        return KernelSpec.build(
            "_".join([*(form.outputs[o].name for o in self.outputs), self.task.reduce_over.value]),
            source,
            [real] * len(self.inputs) + ["*i32"] * len(arrays) + [sums] * len(before),
            [sums if o in unfinished else real for o in self.outputs],
            scalars,
            max(1, self.leading * self.lanes // WARP),
        )

    def emit_all(self):
        if self.over_rows:
            self._rows_prologue()
            self._edge(lambda operand: True)
        else:
            self._graph_prologue()
            owned = self.task.reduce_over
            self._fetch_first()
            with self.block("while position < stop:"):
                self._fetch_ahead()
                self._edge(lambda operand: operand.index is not owned)
                self.emit(f"position += {self.edges}")
            self._finish_node()

    def _finish_node(self):
        """Store the sums over edges; those of edge lanes are added first, always in one order."""
        zeros = self.task.zero_segments
        segments = [s for s in sorted(self.task.written) if self._owned(self.form.outputs[s[0]])]
        summed = [s for s in segments if s not in zeros]
        if self.edges > 1:
            names = [name for s in summed for name in self._components(*s)]
            for first in range(0, len(names), ADDED):
                self._reduce(names[first : first + ADDED], 0)
        whole = [s for s in summed if not self.form.outputs[s[0]].channels]
        self._reduce([name for s in whole for name in self._components(*s)], 0)
        for o, number in segments:
            self._store(o, number, (o, number) not in zeros)

    def _rows_prologue(self):
        self.emit(f"row = tl.program_id(0).to(tl.int64) * {self.rows}")
        self.emit(f"row = (row + tl.arange(0, {self.rows}))[:, None]")
        self.emit("present = row < num_rows")
        for name in self.index_arrays():
            load = f"tl.load({name}_ptr + row, mask=present, other=0)"
            self.emit(f"{name[:-1]} = {load}.to(tl.int64)")
        self.emit(f"lane = tl.program_id(1) * {self.lanes} + tl.arange(0, {self.lanes})[None, :]")
        self._masks()

    def _graph_prologue(self):
        reduce_over = self.task.reduce_over
        self.emit(f"{reduce_over.value} = tl.program_id(0).to(tl.int64)")
        lanes = f"tl.arange(0, {self.lanes}){'[None, :]' if self.two_axes else ''}"
        self.emit(f"lane = tl.program_id(1) * {self.lanes} + {lanes}")
        if self.two_axes:
            self.emit(f"edge = tl.arange(0, {self.edges})[:, None]")
        self._masks()
        _, ptr = reduce_over.edge_arrays
        self.emit(f"position = tl.load({ptr}_ptr + {reduce_over.value}).to(tl.int64)")
        self.emit(f"stop = tl.load({ptr}_ptr + {reduce_over.value} + 1)")
        used = {(s.operand, s.segment) for g in self.task.groups for p in g for s in p.factors}
        for i in self.inputs:
            operand = self.form.inputs[i]
            if operand.index is reduce_over:
                self._row_of(operand)
                for number, segment in enumerate(operand.segments):
                    for component in range(segment.dim) if (i, number) in used else ():
                        name = component_name(operand, number, component)
                        self._load(operand, segment, component, name)
        for o in self.outputs:
            operand = self.form.outputs[o]
            if operand.index is reduce_over:
                self._row_of(operand, output=o)
                for name in self._accumulators(o):
                    self.emit(f"{name} = tl.zeros({self.shape}, {self.real})")

    def _ends(self) -> list[str]:
        """Return the index arrays of the other ends of edges."""
        own = self.task.reduce_over.edge_arrays
        return [name for name in self.index_arrays() if name not in own]

    def _fetch(self, name: str, at: str, turn: int) -> str:
        """Return a load of an index array, masked where a later turn has no edge."""
        here = "position + edge" if self.two_axes else "position"
        ahead = f" + {turn * self.edges}" if turn else ""
        return f"tl.load({name}_ptr + {at or here + ahead}, mask={here}{ahead} < stop, other=0)"

    def _fetch_first(self):
        """Load the indices of the first edge, and the row of the second."""
        order = self.task.reduce_over.edge_arrays[0]
        self.emit(f"next_row = {self._fetch(order, '', 0)}")
        for name in self._ends():
            self.emit(f"next_{name[:-1]} = {self._fetch(name, 'next_row', 0)}")
        if self._ends():
            self.emit(f"later_row = {self._fetch(order, '', 1)}")

    def _fetch_ahead(self):
        """Load the indices of the next edge, and the row of the one after, during this one.

        What an edge reads waits for its indices, and those of nodes wait for its row.
        """
        order = self.task.reduce_over.edge_arrays[0]
        if self.two_axes:
            self.emit("present = position + edge < stop")
        self.emit("row = next_row.to(tl.int64)")
        for name in self._ends():
            self.emit(f"{name[:-1]} = next_{name[:-1]}.to(tl.int64)")
        self.emit(f"next_row = {'later_row' if self._ends() else self._fetch(order, '', 1)}")
        for name in self._ends():
            self.emit(f"next_{name[:-1]} = {self._fetch(name, 'next_row', 1)}")
        if self._ends():
            self.emit(f"later_row = {self._fetch(order, '', 2)}")

    def _accumulators(self, o: int):
        operand = self.form.outputs[o]
        for number, segment in enumerate(operand.segments):
            if (o, number) in self.task.written - self.task.zero_segments:
                for component in range(segment.dim):
                    yield component_name(operand, number, component)

    def _edge(self, in_loop):
        """Write the work of one row: loads, sums, and the outputs of the row itself."""
        form = self.form
        for i in self.inputs:
            if in_loop(form.inputs[i]):
                self._row_of(form.inputs[i])
        per_row = [o for o in self.outputs if in_loop(form.outputs[o])]
        for o in per_row:
            self._row_of(form.outputs[o], output=o)

        last = {}
        for number, group in enumerate(self.task.groups):
            last.update({(p.output.operand, p.output.segment): number for p in group})
        arithmetic = ArithmeticEmitter(form, self._load, self.emit)
        arithmetic.loaded(
            component_name(form.inputs[i], number, component)
            for i in self.inputs
            if not in_loop(form.inputs[i])
            for number, segment in enumerate(form.inputs[i].segments)
            for component in range(segment.dim)
        )
        assigned = (
            set()
            if self.over_rows
            else {name for o in self.outputs if o not in per_row for name in self._accumulators(o)}
        )
        for number, group in enumerate(self.task.groups):
            arithmetic.new_group()
            for path in sorted(group, key=lambda p: self._vectors(p)):
                arithmetic.add_path(path, self._accumulator(path, assigned))
            for (o, segment), when in last.items():
                if when == number and o in per_row and form.outputs[o].channels:
                    self._finish(o, segment, assigned)
        whole = [(o, s) for o, s in last if o in per_row and not form.outputs[o].channels]
        self._add_channels(whole, assigned)
        for o, segment in whole:
            self._store(o, segment)
        for o, segment in sorted(self.task.zero_segments):
            if o in per_row:
                self._store(o, segment, has_value=False)
        self.operations = arithmetic.operations

    def _vectors(self, path: Path) -> int:
        """Return paths of fewer vector factors first: the others reuse the sums that they name."""
        inputs = self.form.inputs
        return sum(inputs[s.operand].segments[s.segment].dim > 1 for s in path.factors)

    def _accumulator(self, path: Path, assigned: set[str]):
        operand = self.form.outputs[path.output.operand]
        factors = [self.form.inputs[ref.operand] for ref in path.factors]
        # no factor of the node is zero where there is no edge
        absent = self.edges > 1 and self._owned(operand) and any(map(self._owned, factors))

        def accumulate(component: int, expression: str):
            name = component_name(operand, path.output.segment, component)
            if absent:
                expression = f"tl.where(present, {expression}, 0.0)"
            self.emit(f"{name} {'+=' if name in assigned else '='} {expression}")
            assigned.add(name)

        return accumulate

    def _finish(self, o: int, segment: int, assigned: set[str]):
        self._define(o, segment, assigned)
        self._store(o, segment)

    def _define(self, o: int, segment: int, assigned: set[str]):
        """Set the components to zero that no path adds to."""
        for name in self._components(o, segment):
            if name not in assigned:
                self.emit(f"{name} = tl.zeros({self.shape}, {self.real})")

    def _add_channels(self, segments, assigned: set[str]):
        """Sum components of segments (output, segment) over channels in one reduction.

        Each reduction has barriers of its own.
        """
        for o, segment in segments:
            self._define(o, segment, assigned)
        names = [name for segment in segments for name in self._components(*segment)]
        if self.edges > 1:  # what no factor of an edge is in has one row
            for name in names:
                self.emit(f"{name} = tl.broadcast_to({name}, {self.shape})")
        self._reduce(names, *((1, True) if self.two_axes else (0,)))


def generate(task: Task) -> FormKernel:
    """Return the kernel of a task."""
    writer = TaskEmitter(task)
    spec = writer.spec()
    return FormKernel(
        spec,
        writer.inputs,
        writer.index_arrays(),
        writer.continued,
        writer.outputs,
        writer.partial,
        task.reduce_over,
        writer.rows,
        writer.channel_blocks,
    )
