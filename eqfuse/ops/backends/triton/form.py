"""A form as the text of one Triton kernel, in which a thread holds one channel.

Over rows, a program computes a block of rows and channels. Over a graph, it owns a node, walks its
edges in order and stores its sums once: nothing is added atomically, and results are repeatable. A
plan that the user allows is an exception: receivers own all edges, read their rows once, and add to
the rows of senders atomically (`tasks`).

For example, messages x (32 scalars of the sender) times y (a vector of the edge) times weights,
summed over the edges of a receiver. A thread has a channel, `lane`; the sender of the next edge is
loaded while this one is computed.

    receiver = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * 32 + tl.arange(0, 32)
    position = tl.load(receiver_ptr_ptr + receiver).to(tl.int64)
    stop = tl.load(receiver_ptr_ptr + receiver + 1)
    out_row = out_ptr + receiver * 96
    out_0_0 = tl.zeros([32], tl.float32)
    ...
    while position < stop:
        row = next_row.to(tl.int64)
        sender = next_sender.to(tl.int64)
    ...
        x_row = x_ptr + sender * 32
        y_row = y_ptr + row * 3
        w_row = w_ptr + row * 32
        y_0_0 = tl.load(y_row + 0)
        y_0_1 = tl.load(y_row + 1)
        y_0_2 = tl.load(y_row + 2)
        x_0_0 = tl.load(x_row + 0 + lane)
        w_0_0 = tl.load(w_row + 0 + lane)
        v1 = x_0_0 * w_0_0
        out_0_0 += v1 * y_0_0
        out_0_1 += v1 * y_0_1
        out_0_2 += v1 * y_0_2
        position += 1
    ...
    tl.store(out_row + 0 + lane * 3, out_0_0)
    tl.store(out_row + 1 + lane * 3, out_0_1)
    tl.store(out_row + 2 + lane * 3, out_0_2)
"""

import dataclasses
import functools
import itertools
import math

from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.backends.triton.text import (
    ArithmeticEmitter,
    Emitter,
    component_names,
    packed,
    power_of_two,
)
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Role, ordered_groups, reductions

WARP = 32
THREADS = 256  # of a program at most: they can have 255 registers each


@dataclasses.dataclass(frozen=True)
class Task:
    """The part of a form that one kernel computes; segments are pairs (output, segment)."""

    form: Form  # whole
    groups: tuple[tuple[Path, ...], ...]  # the paths of this kernel, which share values in a group
    reduce_over: Index  # whose edges are summed, ROW where each row is an output
    accumulated: frozenset[tuple[int, int]]  # segments that earlier kernels have written, added to
    zero_segments: frozenset[tuple[int, int]]  # for which no kernel has paths: zeros, here
    shared: frozenset[int]  # outputs that several kernels add to, in float32 or better until then
    dtype: str  # of the operands, a numpy name
    edge_lanes: int = 1  # edges of a program at a time, if threads allow it: a power of two
    channels: int = 0  # of a program at most; 0 for `blocks` to say
    divisor: int = 1  # of the warps of a program, whose threads have as many channels more
    all_channels: bool = False  # of one program, where several would have them otherwise

    @property
    def written(self) -> set[tuple[int, int]]:
        return {
            (p.output.operand, p.output.segment) for g in self.groups for p in g
        } | self.zero_segments


def blocks(form: Form, reduces_channels: bool, most: int = 0) -> tuple[int, int]:
    """Return channels of a program, at most so many, and the number of such blocks.

    Without `most`, there is one block if channels are summed.
    """
    widest = most or (THREADS if reduces_channels else 128)  # a thread each
    block = min(power_of_two(form.max_mul), widest)
    return block, -(-form.max_mul // block)


ADDED = 16  # sums that edge lanes add at a time, at most: each takes shared memory


@dataclasses.dataclass(frozen=True)
class FormKernel:
    """A kernel that computes some outputs of a form.

    It is called with `inputs`, `index_arrays`, the outputs so far of `continued`, and the scalars.
    What has no output so far is zeros. An output in `partial` has a leading axis of
    `channel_blocks`, to be summed. Outputs that are not finished are in float32 or better.
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


class TaskEmitter(Emitter):
    """Collects the text of one kernel."""

    def __init__(self, task: Task):
        super().__init__()
        self.task, self.form = task, task.form
        self.real = "tl.float64" if task.dtype == "float64" else "tl.float32"
        written = {o for o, _ in task.written}
        self.outputs = tuple(sorted(written))
        owned = {Index.ROW, task.reduce_over}
        self.added = {o for o in written if self.form.outputs[o].index not in owned}  # atomically
        self.continued = tuple(sorted(written & {o for o, _ in task.accumulated} | self.added))
        reduces = task.all_channels or any(not self.form.outputs[o].channels for o in self.outputs)
        self.lanes, self.channel_blocks = blocks(self.form, reduces, task.channels)
        self.partial = tuple(
            o for o in self.outputs if self.channel_blocks > 1 and not self.form.outputs[o].channels
        )
        self.over_rows = task.reduce_over is Index.ROW
        if not self.over_rows:
            self.lanes = max(self.lanes, WARP)
        self.rows = max(1, 4 * WARP // self.lanes) if self.over_rows else 1
        self.edges = 1 if self.over_rows else max(1, min(task.edge_lanes, THREADS // self.lanes))
        self.leading = self.rows if self.over_rows else self.edges
        self.two_axes = self.over_rows or self.edges > 1
        self.shape = f"[{self.leading}, {self.lanes}]" if self.two_axes else f"[{self.lanes}]"
        self.inputs = tuple(sorted({s.operand for g in task.groups for p in g for s in p.factors}))

    def index_arrays(self) -> tuple[str, ...]:
        """Return the index arrays from an edge to rows of operands, and the edge order."""
        operands = [self.form.inputs[i] for i in self.inputs]
        operands += [self.form.outputs[o] for o in self.outputs]
        others = {o.index for o in operands if o.index.is_node} - {self.task.reduce_over}
        return tuple(sorted(f"{i.value}s" for i in others)) + self.task.reduce_over.edge_arrays

    def _owned(self, operand: Operand) -> bool:
        """Return whether an operand has one row for the program, that of its node."""
        return operand.index is self.task.reduce_over and not self.over_rows

    def _masks(self):
        present = "present & " if self.over_rows else ""
        operands = [self.form.inputs[i] for i in self.inputs]
        operands += [self.form.outputs[o] for o in self.outputs]
        muls = {s.mul for o in operands if o.channels for s in o.segments}
        for mul in sorted(filter(self._masked, muls)):
            self.emit(f"in_{mul} = {present}(lane < {mul})")

    def _mask(self, operand: Operand, mul: int | None) -> str:
        """Return the mask of channels of an operand, or of its row alone; "" if there is none."""
        masked = mul is not None and self._masked(mul)
        if self.edges > 1 and not self._owned(operand):
            return f"present & in_{mul}" if masked else "present"
        if masked:
            return f"in_{mul}"
        return "present" if self.over_rows else ""

    def _masked(self, mul: int) -> bool:
        """Return whether some lanes of some program have no channel of a segment of `mul`."""
        return self.over_rows or mul != self.lanes * self.channel_blocks

    def _components(self, o: int, segment: int) -> list[str]:
        return component_names(self.form.outputs[o], segment)

    def _row_of(self, operand: Operand, output: int | None = None):
        # zero for each row: masks and values have that shape
        row = "(row * 0)" if operand.index is Index.SHARED else operand.index.value
        name = operand.name
        if output in self.partial:
            count = "num_rows" if operand.index is Index.ROW else "num_nodes"
            row = f"(tl.program_id(1) * {count} + {row})"
        self.emit(f"{name}_row = {name}_ptr + {row} * {operand.size}")
        if output in self.continued:
            self.emit(f"{name}_before_row = {name}_before_ptr + {row} * {operand.size}")

    def _place(self, operand: Operand, segment, component: int) -> tuple[str, str]:
        """Return the offset of a component in its row, and the mask of its channels."""
        offset = segment.offset + component * segment.component_stride
        if not operand.channels:
            return f"{offset}", self._mask(operand, None)
        stride = segment.channel_stride
        lane = "lane" if stride == 1 else f"lane * {stride}"
        return f"{offset} + {lane}", self._mask(operand, segment.mul)

    def _load(self, operand: Operand, segment, component: int, name: str, row: str = ""):
        place, mask = self._place(operand, segment, component)
        if self.over_rows and operand.index.is_node:
            mask += f" & {operand.index.value}_inside"
        mask = f", mask={mask}, other=0.0" if mask else ""
        dtype = self.form.dtype(operand, self.task.dtype)
        wide = "" if dtype in ("float32", "float64") else f".to({self.real})"
        self.emit(f"{name} = tl.load({row or operand.name + '_row'} + {place}{mask}){wide}")

    def _store(self, o: int, number: int, has_value: bool = True):
        operand = self.form.outputs[o]
        segment = operand.segments[number]
        is_continued = (o, number) in self.task.accumulated and o not in self.added
        if is_continued:  # all warps read in place what one of them writes
            for component in range(segment.dim):
                row = f"{operand.name}_before_row"
                self._load(operand, segment, component, f"before_{component}", row)
            self.emit("tl.debug_barrier()")
        for component, name in enumerate(self._components(o, number)):
            place, mask = self._place(operand, segment, component)
            by_lane = self.edges > 1 and self._owned(operand) and operand.channels
            value = "0.0" if not has_value else f"{name}[None, :]" if by_lane else name
            if is_continued:
                value = f"before_{component} + {value}"
            mask = f", mask={mask}" if mask else ""
            if o in self.added:
                mask += ", sem='relaxed'"
            function = "tl.atomic_add" if o in self.added else "tl.store"
            self.emit(f"{function}({operand.name}_row + {place}, {value}{mask})")

    # the kernel

    def kernel(self) -> FormKernel:
        self.emit_all()
        form, arrays = self.form, self.index_arrays()
        indices = {form.outputs[o].index for o in self.partial}
        of_rows = any(form.outputs[o].index is Index.ROW for o in self.outputs)
        scalars = ["num_rows"] * of_rows
        of_nodes = not self.over_rows and (of_rows or indices)
        scalars += ["num_nodes"] * bool(self.ends() or of_nodes)
        sums = self.real.removeprefix("tl.")
        unfinished = {*self.partial, *self.task.shared, *self.added}
        dtype = self.task.dtype
        inputs = {form.inputs[i].name: form.dtype(form.inputs[i], dtype) for i in self.inputs}
        inputs |= dict.fromkeys(arrays, "int32")
        inputs |= {f"{form.outputs[o].name}_before": sums for o in self.continued}
        whole = {o: form.dtype(form.outputs[o], dtype) for o in self.outputs}
        outputs = {form.outputs[o].name: sums if o in unfinished else whole[o] for o in whole}
        note = f"{sum(map(len, self.task.groups))} of the paths of:\n{form!r}"
        reduce_over = self.task.reduce_over
        stem = "_".join([*outputs, reduce_over.value])
        warps = max(1, self.leading * self.lanes // WARP // self.task.divisor)
        spec = self.spec(stem, note, inputs, scalars, outputs, warps)
        operands = self.inputs, arrays, self.continued, self.outputs, self.partial
        return FormKernel(spec, *operands, reduce_over, self.rows, self.channel_blocks)

    def emit_all(self):
        if self.over_rows:
            self._rows_prologue()
            self._edge(lambda operand: True)
        else:
            self._graph_prologue()
            owned = self.task.reduce_over
            self._fetch_edge(0)
            with self.block("while position < stop:"):
                self._fetched()
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
                self.reduce(names[first : first + ADDED], 0)
        whole = [s for s in summed if not self.form.outputs[s[0]].channels]
        self.reduce([name for s in whole for name in self._components(*s)], 0)
        for o, number in segments:
            self._store(o, number, (o, number) not in zeros)

    def _zero_dropped_rows(self):
        """Write zeros for edges of no node, which are behind all in the order: the last node's."""
        of_rows = [o for o in self.outputs if self.form.outputs[o].index is Index.ROW]
        if not of_rows:
            return
        owner, (order, ptr) = self.task.reduce_over.value, self.task.reduce_over.edge_arrays
        self.emit(f"position = tl.load({ptr}_ptr + {owner} + 1).to(tl.int64)")
        self.emit(f"stop = tl.where({owner} == num_nodes - 1, num_rows, 0)")
        with self.block("while position < stop:"):
            if self.two_axes:
                self.emit("present = position + edge < stop")
            self.emit(f"row = {self._fetch(order, '', 0)}.to(tl.int64)")
            mask = " & present" if self.two_axes else ""
            for o in of_rows:
                operand, step = self.form.outputs[o], self.lanes * self.channel_blocks
                self._row_of(operand, output=o)
                first = "0"
                if o in self.partial:  # of which this program has a row to itself
                    first, step = f"-tl.program_id(1) * {self.lanes}", self.lanes
                stop = operand.size if first == "0" else f"{operand.size} + ({first})"
                with self.block(f"for at in tl.range({first}, {stop}, {step}, num_stages=1):"):
                    inside = f"(at + lane < {operand.size}){mask}"
                    self.emit(f"tl.store({operand.name}_row + at + lane, 0.0, mask={inside})")
            self.emit(f"position += {self.edges}")

    def _rows_prologue(self):
        self.emit(f"row = tl.program_id(0).to(tl.int64) * {self.rows}")
        self.emit(f"row = (row + tl.arange(0, {self.rows}))[:, None]")
        self.emit("present = row < num_rows")
        for name in self.index_arrays():
            load = f"tl.load({name}_ptr + row, mask=present, other=0)"
            self.emit(f"{name[:-1]} = {load}.to(tl.int64)")
            inside = f"({name[:-1]} >= 0) & ({name[:-1]} < num_nodes)"
            self.emit(f"{name[:-1]}_inside = {inside}")
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
        self._zero_dropped_rows()
        _, ptr = reduce_over.edge_arrays
        self.emit(f"position = tl.load({ptr}_ptr + {reduce_over.value}).to(tl.int64)")
        self.emit(f"stop = tl.load({ptr}_ptr + {reduce_over.value} + 1)")
        used = {(s.operand, s.segment) for g in self.task.groups for p in g for s in p.factors}
        for i in self.inputs:
            operand = self.form.inputs[i]
            if operand.index is reduce_over:
                self._row_of(operand)
                for number, segment in enumerate(operand.segments):
                    names = component_names(operand, number) if (i, number) in used else []
                    for component, name in enumerate(names):
                        self._load(operand, segment, component, name)
        for o in self.outputs:
            operand = self.form.outputs[o]
            if operand.index is reduce_over:
                self._row_of(operand, output=o)
                for name in self._accumulators(o):
                    self.emit(f"{name} = tl.zeros({self.shape}, {self.real})")

    def ends(self) -> list[str]:
        """Return the index arrays of the other ends of edges."""
        own = self.task.reduce_over.edge_arrays
        return [name for name in self.index_arrays() if name not in own]

    def _fetch(self, name: str, at: str, turn: int) -> str:
        """Return a load of an index array, masked where a later turn has no edge."""
        here = "position + edge" if self.two_axes else "position"
        ahead = f" + {turn * self.edges}" if turn else ""
        load = f"tl.load({name}_ptr + {at or here + ahead}, mask={here}{ahead} < stop, other=0)"
        return self.node_index(load) if name in self.ends() else load

    def _fetch_edge(self, turn: int):
        """Load the indices of an edge, this or the next, and the row of the one after.

        What an edge reads waits for its indices, and those of nodes wait for its row.
        """
        order, ends = self.task.reduce_over.edge_arrays[0], self.ends()
        self.emit(f"next_row = {'later_row' if turn and ends else self._fetch(order, '', turn)}")
        for name in ends:
            self.emit(f"next_{name[:-1]} = {self._fetch(name, 'next_row', turn)}")
        if ends:
            self.emit(f"later_row = {self._fetch(order, '', turn + 1)}")

    def _fetched(self):
        """Take the indices that are loaded, and load those of the next edge during this one."""
        if self.two_axes:
            self.emit("present = position + edge < stop")
        for name in ("rows", *self.ends()):
            self.emit(f"{name[:-1]} = next_{name[:-1]}.to(tl.int64)")
        self._fetch_edge(1)

    def _accumulators(self, o: int):
        for number in range(len(self.form.outputs[o].segments)):
            if (o, number) in self.task.written - self.task.zero_segments:
                yield from self._components(o, number)

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
        for i in self.inputs:
            if not in_loop(form.inputs[i]):
                for number in range(len(form.inputs[i].segments)):
                    arithmetic.loaded(component_names(form.inputs[i], number))
        assigned = (
            set()
            if self.over_rows
            else {name for o in self.outputs if o not in per_row for name in self._accumulators(o)}
        )
        for number, group in enumerate(self.task.groups):
            arithmetic.new_group()
            for path in sorted(group, key=self._vectors):
                arithmetic.add_path(path, self._accumulator(path, assigned))
            for (o, segment), when in last.items():
                if when == number and o in per_row and form.outputs[o].channels:
                    self._define(o, segment, assigned)
                    self._store(o, segment)
        whole = [(o, s) for o, s in last if o in per_row and not form.outputs[o].channels]
        self._add_channels(whole, assigned)
        for o, segment in whole:
            self._store(o, segment)
        for o, segment in sorted(self.task.zero_segments):
            if o in per_row and o not in self.added:
                self._store(o, segment, has_value=False)

    def _vectors(self, path: Path) -> int:
        """Return paths of fewer vector factors first: the others reuse the sums that they name."""
        inputs = self.form.inputs
        return sum(inputs[s.operand].segments[s.segment].dim > 1 for s in path.factors)

    def _accumulator(self, path: Path, assigned: set[str]):
        operand = self.form.outputs[path.output.operand]
        names = component_names(operand, path.output.segment)
        factors = [self.form.inputs[ref.operand] for ref in path.factors]
        # no factor of the node is zero where there is no edge
        absent = self.edges > 1 and self._owned(operand) and any(map(self._owned, factors))

        def accumulate(component: int, expression: str):
            name = names[component]
            if absent:
                expression = f"tl.where(present, {expression}, 0.0)"
            self.emit(f"{name} {'+=' if name in assigned else '='} {expression}")
            assigned.add(name)

        return accumulate

    def _define(self, o: int, segment: int, assigned: set[str]):
        """Set the components to zero that no path adds to."""
        for name in self._components(o, segment):
            if name not in assigned:
                self.emit(f"{name} = tl.zeros({self.shape}, {self.real})")

    def _add_channels(self, segments, assigned: set[str]):
        """Sum components of segments over channels in one reduction: each has its barriers."""
        for o, segment in segments:
            self._define(o, segment, assigned)
        names = [name for segment in segments for name in self._components(*segment)]
        if self.edges > 1:  # what no factor of an edge is in has one row
            for name in names:
                self.emit(f"{name} = tl.broadcast_to({name}, {self.shape})")
        self.reduce(names, int(self.two_axes), keep_dims=self.two_axes)


# of a thread at most, by our estimate: no kernel of `benchmarks.products` spills then. It leaves
# out addresses, and in float64 the coefficients, which take registers there
REGISTERS = {"float32": 190, "bfloat16": 190, "float16": 190, "float64": 160}
# of one kernel at most: beyond this, compiling takes long or, in float64, kernels spill
TERMS = {"float32": 2600, "bfloat16": 2600, "float16": 2600, "float64": 450}
TERMS_OF_A_WALK = 2100  # of a kernel that walks edges, at most: one of 2,118 spills on sm_90
TERMS_OF_LANES = 1700  # of a kernel with several lanes of edges, at most: of 2,358, some spill
THREADS_AT_ONCE = 2**15  # of a GPU of 128 multiprocessors, each with as many registers as it may


def edge_lanes(form: Form, dtype: str, num_rows: int, num_nodes: int) -> int:
    """Return the number of edges of a node that a program has at a time: several on a small graph.

    A small graph takes as long as one program: each lane has two edges on the mean, if all programs
    still run at once.
    """
    threads, count = blocks(form, reduces_channels=True)
    threads = max(threads, WARP) * count * num_nodes
    lanes = 1
    if form.on_graph and dtype != "float64":  # whose kernels have no registers left
        while 4 * lanes * num_nodes <= num_rows and 2 * lanes * threads <= THREADS_AT_ONCE:
            lanes *= 2
    return lanes


def unsupported_reason(form: Form, dtype: str) -> str:
    """Return why a program cannot sum all that a Linear of its node reads, or ""."""
    if form.max_mul > THREADS:
        return f"a program has at most {THREADS} channels, and these are {form.max_mul}"
    count = len(tasks(form, dtype))
    return "" if count == 1 else f"the sums of a node are {count} kernels: one would spill"


@functools.lru_cache(maxsize=1024)
def kernels(form: Form, dtype: str, *plan) -> tuple[FormKernel, ...]:
    """Return the kernels that together compute a form in one dtype, in the order to run.

    `plan` is what `tasks` takes.
    """
    return tuple(TaskEmitter(task).kernel() for task in tasks(form, dtype, *plan))


@functools.lru_cache(maxsize=1024)
def tasks(
    form: Form, dtype: str, lanes: int = 1, channels: int = 0, divisor: int = 1
) -> tuple[Task, ...]:
    """Return the tasks of the kernels of a form, which have so many `lanes` of edges.

    Where it is negative, programs of receivers compute all outputs, and rows of senders are added
    to. A program of 32 `channels` is one warp: it sums them without barriers, and another sum
    follows. The warps of a program are divided by `divisor`.
    """
    found, accumulated = [], set()
    by_receiver = {Index.RECEIVER: [*range(len(form.outputs))]}
    for reduce_over, outputs in (by_receiver if lanes < 0 else reductions(form)).items():
        part = [p for p in form.paths if p.output.operand in outputs]
        groups = ordered_groups(Form(form.inputs, form.outputs, tuple(part)))
        chunks = _chunks(form, reduce_over, groups, dtype)
        touched = {(p.output.operand, p.output.segment) for p in part}
        every = {(o, s) for o in outputs for s in range(len(form.outputs[o].segments))}
        zero_segments = every - touched
        writers = [{p.output.operand for group in chunk for p in group} for chunk in chunks]
        writers[0] |= {o for o, _ in zero_segments}
        shared = frozenset(o for o in outputs if sum(o in written for written in writers) > 1)
        for chunk in chunks:
            parts = frozenset(accumulated), frozenset(zero_segments), shared
            terms = sum(len(path.terms) for group in chunk for path in group)
            edges = abs(lanes) if terms <= TERMS_OF_LANES else 1
            found.append(Task(form, chunk, reduce_over, *parts, dtype, edges, channels, divisor))
            accumulated |= found[-1].written
            zero_segments = set()
    return tuple(found)


def _chunks(form: Form, reduce_over: Index, groups, dtype: str):
    """Return groups of paths in runs that fit one kernel each."""
    width = 2 if dtype == "float64" else 1
    most = min(TERMS[dtype], TERMS_OF_A_WALK) if reduce_over.is_node else TERMS[dtype]
    chunks, current = [], []
    parts = (packed(group, [len(path.terms) for path in group], most) for group in groups)
    for group in itertools.chain(*parts):  # parts share no values
        longer = [*current, tuple(group)]
        terms = sum(len(path.terms) for g in longer for path in g)
        registers = _registers(form, reduce_over, longer) * width
        if current and (registers > REGISTERS[dtype] or terms > most):
            chunks.append(tuple(current))
            longer = [tuple(group)]
        current = longer
    return [*chunks, tuple(current)]


def _registers(form: Form, reduce_over: Index, groups: list[tuple[Path, ...]]) -> int:
    """Return the most values that a thread holds: those kept by the loop, and of a group."""
    kept, widest = set(), 0
    for group in groups:
        local, products = set(), 0
        for path in group:
            output = form.outputs[path.output.operand]
            size = output.segments[path.output.segment].dim
            through_loop = output.index is reduce_over or not output.channels
            place = kept if through_loop else local
            place.add(("out", path.output, size))
            for ref in path.factors:
                operand = form.inputs[ref.operand]
                reused = operand.index is reduce_over or operand.role in (Role.LEFT, Role.RIGHT)
                dim = operand.segments[ref.segment].dim
                (kept if reused else local).add(("in", ref, dim))
            dims = sorted(form.inputs[s.operand].segments[s.segment].dim for s in path.factors)
            products = max(products, math.prod(dims[-2:]))
        widest = max(widest, products + max((size for *_, size in local), default=0))
    return sum(size for *_, size in kept) + widest
