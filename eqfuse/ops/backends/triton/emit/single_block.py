"""A form and a linear form as the statements of a step: one block computes all rows or nodes.

A thread has a channel of a row, and several rows are computed at the same time. A node sums its
edges in their order, and waits for the node that has most of them. Nothing is added atomically.
"""

import contextlib

from eqfuse.ops.backends.triton.emit import linear_kernel, linear_plan
from eqfuse.ops.backends.triton.emit.arithmetic import ArithmeticEmitter
from eqfuse.ops.backends.triton.emit.emitter import DenseEmitter, component_name, power_of_two
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear_form import LinearForm, Weights
from eqfuse.ops.ir.operands import Index, Operand
from eqfuse.ops.ir.schedule import ordered_groups

MOST_CHANNELS = 128
TILE = 64


class FormEmitter(DenseEmitter):
    """Writes a form; pointers have the names of operands and of index arrays.

    Args:
      form: what to compute.
      dtype: of its operands.
      num_rows, num_nodes: how many there are.
      threads: of the block.
    """

    def __init__(self, form: Form, dtype: str, num_rows: int, num_nodes: int, threads: int):
        super().__init__(dtype)
        self.form, self.num_rows, self.num_nodes = form, num_rows, num_nodes
        self.channels = power_of_two(form.max_mul)
        self.rows = max(1, threads // self.channels)

    def emit_all(self):
        """Write all outputs, those of one kind of row together."""
        for index in dict.fromkeys(o.index for o in self.form.outputs):
            written = [o for o, operand in enumerate(self.form.outputs) if operand.index is index]
            paths = tuple(p for p in self.form.paths if p.output.operand in written)
            part = Form(self.form.inputs, self.form.outputs, paths)
            count = self.num_nodes if index.is_node else self.num_rows
            with self.block(f"for first in tl.range(0, {count}, {self.rows}, num_stages=1):"):
                self.emit(f"own = (first + tl.arange(0, {self.rows}))[:, None]")
                self.emit(f"owned = own < {count}")
                self.emit(f"lane = tl.arange(0, {self.channels})[None, :]")
                for o in written:
                    for name in self._components(o):
                        zeros = f"tl.zeros([{self.rows}, {self.channels}], {self.real})"
                        self.emit(f"{name} = {zeros}")
                self._walk(part, index) if index.is_node else self._row(part)
                for o in written:
                    self._store(o)

    def _components(self, o: int):
        operand = self.form.outputs[o]
        for number, segment in enumerate(operand.segments):
            for component in range(segment.dim):
                yield component_name(operand, number, component)

    def _row(self, part: Form):
        self._ends(part, "own", "owned", None)
        self._sums(part, {Index.ROW: "own"}, "owned")

    def _walk(self, part: Form, index: Index):
        order, offsets = index.edge_arrays
        self.emit(f"start = tl.load({offsets}_ptr + own, mask=owned, other=0)")
        self.emit(f"stop = tl.load({offsets}_ptr + own + 1, mask=owned, other=0)")
        self.emit("longest = tl.max(stop - start)")
        self.emit("walked = longest * 0")
        with self.block("while walked < longest:"):
            self.emit("present = owned & (start + walked < stop)")
            self.emit(f"edge = tl.load({order}_ptr + start + walked, mask=present, other=0)")
            self._ends(part, "edge", "present", index)
            self._sums(part, {Index.ROW: "edge", index: "own"}, "present")
            self.emit("walked += 1")

    def _ends(self, part: Form, edge: str, present: str, own: Index | None):
        """Load the nodes that edges point at."""
        used = {o.index for o, keep in zip(part.inputs, part.used_inputs(), strict=True) if keep}
        for index in (Index.SENDER, Index.RECEIVER):
            if index in used and index is not own:
                self.emit(
                    f"{index.value} = tl.load({index.value}s_ptr + {edge}, mask={present}, other=0)"
                )

    def _sums(self, part: Form, rows: dict[Index, str], present: str):
        """Add the products of one row to the components of the outputs."""
        used = [o for o, keep in zip(part.inputs, part.used_inputs(), strict=True) if keep]
        nodes = {
            Index.SENDER: "sender",
            Index.RECEIVER: "receiver",
            Index.SHARED: "(own * 0)",
        }
        for operand in used:
            row = (nodes | rows)[operand.index]
            self.emit(f"{operand.name}_row = {operand.name}_ptr + {row} * {operand.size}")
        for mul in sorted({s.mul for o in used if o.channels for s in o.segments}):
            self.emit(f"in_{mul} = {present} & (lane < {mul})")

        def load(operand, segment, component, name):
            place, mask = self._place(operand, segment, component, present)
            self.emit(f"{name} = {self.loaded(f'{operand.name}_row + {place}', mask)}")

        def accumulator(path):
            operand, segment = self.form.outputs[path.output.operand], path.output.segment
            return lambda component, expression: self.emit(
                f"{component_name(operand, segment, component)} += {expression}"
            )

        arithmetic = ArithmeticEmitter(part, load, self.emit)
        arithmetic.add_groups(ordered_groups(part), accumulator)

    def _place(self, operand: Operand, segment, component: int, present: str):
        offset = segment.offset + component * segment.component_stride
        if not operand.channels:
            return f"{offset}", present
        return f"{offset} + lane * {segment.channel_stride}", f"in_{segment.mul}"

    def _store(self, o: int):
        operand = self.form.outputs[o]
        row = f"{operand.name}_ptr + own * {operand.size}"
        for number, segment in enumerate(operand.segments):
            for component in range(segment.dim):
                name = component_name(operand, number, component)
                place, mask = self._place(operand, segment, component, "owned")
                if operand.channels:
                    mask = f"owned & (lane < {segment.mul})"
                else:
                    name = f"tl.sum({name}, axis=1, keep_dims=True)"
                self.emit(f"tl.store({row} + {place}, {name}, mask={mask})")


class _Job(linear_kernel.JobEmitter):
    """Writes a job whose programs are the turns of a loop."""

    def together(self, size: int, most: int) -> int:
        """Return 1: a sequence is long to compile."""
        return 1

    @contextlib.contextmanager
    def _mine(self, count: str):
        self.text.emit("number = tl.program_id(0) * 0")
        with self.text.block(f"while number < {count}:"):
            yield
            self.text.emit("number += 1")


def emit_linear(form: LinearForm, dtype: str, num_rows: int) -> DenseEmitter:
    """Return the statements of a linear form of `a0_ptr`, ..., `set_index_ptr` to `o0_ptr`, ..."""
    text = DenseEmitter(dtype, form.input_precision)
    text.emit(f"num_rows = {num_rows}")
    text.emit("num_parts = 1")
    for job in linear_plan.jobs(form):
        operand = form.outputs[job.output]
        writer = _Job(form, job, text, TILE if dtype == "float32" else linear_plan.TILE)
        (writer.weights if isinstance(operand, Weights) else writer.rows)(operand)
    return text
