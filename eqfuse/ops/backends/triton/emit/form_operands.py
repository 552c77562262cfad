"""The operands of a kernel of a form: its threads, and loads, stores and sums over some of them."""

import dataclasses

from eqfuse.ops.backends.triton.emit.emitter import Emitter, component_name
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Operand, Path

WARP = 32
THREADS = 256
"""Threads of a program at most: they can have 255 registers each."""


@dataclasses.dataclass(frozen=True)
class Task:
    """The part of a form that one kernel computes.

    Attributes:
      form: the whole form.
      groups: the paths of this kernel, in groups that share values.
      reduce_over: whose edges are summed, ROW where each row is an output.
      accumulated: segments (output, segment) that earlier kernels have written, to be added to.
      zero_segments: segments that no kernel has paths for, to be filled with zeros here.
      shared: outputs that several kernels add to, kept in float32 or better until all have.
      dtype: of the operands, a numpy name.
      edge_lanes: edges that a program has at a time, if that many threads may be: a power of two.
      all_channels: whether a program has every channel, where several would have them otherwise.
    """

    form: Form
    groups: tuple[tuple[Path, ...], ...]
    reduce_over: Index
    accumulated: frozenset[tuple[int, int]]
    zero_segments: frozenset[tuple[int, int]]
    shared: frozenset[int]
    dtype: str
    edge_lanes: int = 1
    all_channels: bool = False

    @property
    def written(self) -> set[tuple[int, int]]:
        return {
            (p.output.operand, p.output.segment) for g in self.groups for p in g
        } | self.zero_segments


def blocks(form: Form, reduces_channels: bool) -> tuple[int, int]:
    """Return channels of a program and the number of such blocks, one if channels are summed."""
    widest = THREADS if reduces_channels else 128  # a thread each
    block = min(max(1 << (form.max_mul - 1).bit_length(), 1), widest)
    return block, -(-form.max_mul // block)


class OperandEmitter(Emitter):
    """Collects the text of one kernel: what has to do with one operand."""

    def __init__(self, task: Task):
        super().__init__()
        self.task, self.form = task, task.form
        self.real = "tl.float64" if task.dtype == "float64" else "tl.float32"
        written = task.written
        self.outputs = tuple(sorted({o for o, _ in written}))
        self.continued = tuple(sorted({o for o, _ in written} & {o for o, _ in task.accumulated}))
        reduces = task.all_channels or any(not self.form.outputs[o].channels for o in self.outputs)
        self.lanes, self.channel_blocks = blocks(self.form, reduces)
        self.partial = tuple(
            o for o in self.outputs if self.channel_blocks > 1 and not self.form.outputs[o].channels
        )
        over_rows = task.reduce_over is Index.ROW
        if not over_rows:
            self.lanes = max(self.lanes, WARP)
        self.rows = max(1, 4 * WARP // self.lanes) if over_rows else 1
        self.edges = 1 if over_rows else max(1, min(task.edge_lanes, THREADS // self.lanes))
        self.leading = self.rows if over_rows else self.edges
        self.two_axes = over_rows or self.edges > 1
        self.shape = f"[{self.leading}, {self.lanes}]" if self.two_axes else f"[{self.lanes}]"
        self.inputs = tuple(sorted({s.operand for g in task.groups for p in g for s in p.factors}))
        self.adders: set[int] = set()

    @property
    def over_rows(self) -> bool:
        return self.task.reduce_over is Index.ROW

    def index_arrays(self) -> tuple[str, ...]:
        """Return the index arrays from an edge to rows of operands, and the edge order."""
        operands = [self.form.inputs[i] for i in self.inputs]
        others = {o.index for o in operands if o.index.is_node} - {self.task.reduce_over}
        return tuple(sorted(f"{i.value}s" for i in others)) + self.task.reduce_over.edge_arrays

    def _owned(self, operand: Operand) -> bool:
        """Return whether an operand has one row for the program, that of its node."""
        return operand.index is self.task.reduce_over and not self.over_rows

    def _masks(self):
        present = "present & " if self.over_rows else ""
        for mul in sorted(filter(self._masked, self._muls())):
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

    def _muls(self):
        operands = [self.form.inputs[i] for i in self.inputs]
        operands += [self.form.outputs[o] for o in self.outputs]
        return {s.mul for o in operands if o.channels for s in o.segments}

    def _components(self, o: int, segment: int) -> list[str]:
        operand = self.form.outputs[o]
        dim = operand.segments[segment].dim
        return [component_name(operand, segment, component) for component in range(dim)]

    def _reduce(self, names: list[str], axis: int, keep_dims: bool = False):
        """Sum variables over an axis."""
        keep = ", keep_dims=True" if keep_dims else ""
        if len(names) == 1:
            self.emit(f"{names[0]} = tl.sum({names[0]}, {axis}{keep})")
        elif names:
            self.adders.add(len(names))
            every = ", ".join(names)
            self.emit(f"{every} = tl.reduce(({every}), {axis}, add_{len(names)}{keep})")

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
        """Return where a component lies in its row, and the mask of the channels that it has."""
        offset = segment.offset + component * segment.component_stride
        if not operand.channels:
            return f"{offset}", self._mask(operand, None)
        stride = segment.channel_stride
        lane = "lane" if stride == 1 else f"lane * {stride}"
        return f"{offset} + {lane}", self._mask(operand, segment.mul)

    def _load(self, operand: Operand, segment, component: int, name: str, row: str = ""):
        place, mask = self._place(operand, segment, component)
        mask = f", mask={mask}, other=0.0" if mask else ""
        wide = "" if self.task.dtype in ("float32", "float64") else f".to({self.real})"
        self.emit(f"{name} = tl.load({row or operand.name + '_row'} + {place}{mask}){wide}")

    def _store(self, o: int, number: int, has_value: bool = True):
        operand = self.form.outputs[o]
        segment = operand.segments[number]
        is_continued = (o, number) in self.task.accumulated
        if is_continued:  # all warps read in place what one of them writes
            for component in range(segment.dim):
                row = f"{operand.name}_before_row"
                self._load(operand, segment, component, f"before_{component}", row)
            self.emit("tl.debug_barrier()")
        for component in range(segment.dim):
            name = component_name(operand, number, component)
            place, mask = self._place(operand, segment, component)
            if not has_value:
                rows = 1 if self._owned(operand) else self.leading
                shape = f"[{rows}, {self.lanes if operand.channels else 1}]"
                if not self.two_axes:
                    shape = self.shape if operand.channels else "[]"
                elif self._owned(operand) and not operand.channels:
                    shape = "[]"
                value = "0.0" if shape == "[]" else f"tl.zeros({shape}, {self.real})"
            else:
                by_lane = self.edges > 1 and self._owned(operand) and operand.channels
                value = f"{name}[None, :]" if by_lane else name
            if is_continued:
                value = f"before_{component} + {value}"
            mask = f", mask={mask}" if mask else ""
            self.emit(f"tl.store({operand.name}_row + {place}, {value}{mask})")
