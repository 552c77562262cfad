"""What the kernels of a fused op over rows share: a tile of rows, the product, and matmuls of it.

A program has `ROWS` rows. A component of an operand, of the product or of the pre-activation is
[ROWS, channels], so that a matmul is of one component, and its result has the components that
arithmetic reads: nothing is stacked or taken apart. A tile has more channels than rows, since
Triton gives the warps of several matmuls of such tiles other channels, and of others other rows,
which are too few for them.
"""

import contextlib
import dataclasses
import math

from eqfuse.ops.backends.triton.emit.arithmetic import ArithmeticEmitter
from eqfuse.ops.backends.triton.emit.emitter import DenseEmitter, component_name, power_of_two
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.gates import Part
from eqfuse.ops.ir.linear_form import Term
from eqfuse.ops.ir.operands import Index
from eqfuse.ops.ir.schedule import ordered_groups

ROWS = 16
"""Rows of a tile: those of one instruction of the matrix unit."""
WIDTHS = 32, 64
"""Columns of a tile that is a matmul's result, of few channels and of many."""
COLUMNS_OF_A_WARP = 8
"""Columns of a warp: a thread has four elements of [ROWS, 8], the fewest of the matrix unit."""


@dataclasses.dataclass(frozen=True)
class FusedKernel:
    """A kernel of a fused op and what it is called with.

    Attributes:
      inputs: names of its inputs: operands of the op and index arrays.
      outputs: names of its outputs.
      shares: how many programs have the same rows, some of the work each.
      rows: how many one program has.
    """

    spec: KernelSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shares: int = 1
    rows: int = ROWS


class FusedEmitter(DenseEmitter):
    """Writes a fused kernel.

    Args:
      fused: the op.
      dtype: of its operands, a numpy name.
      channels: of the product, at a time.
      width: columns of a matmul's result.

    Attributes:
      out: the output of the product.
      rows: of a tile.
      row, columns: the variable of the rows, and how many columns the gate has at a time.
    """

    def __init__(self, fused: Fused, dtype: str, channels: int, width: int):
        super().__init__(dtype, fused.linear.linear_form.input_precision)
        self.fused, self.form, self.linear = fused, fused.form, fused.linear
        self.rows, self.channels, self.width = ROWS, channels, width
        self.warps = width // COLUMNS_OF_A_WARP
        self.chunks = -(-self.form.max_mul // channels)
        [self.out] = self.form.outputs
        self.row, self.columns = "row", WIDTHS[0]

    # what a kernel is called with

    def inputs(self, *others: str) -> list[str]:
        """Return operands of the product, parameters, `others`, and index arrays."""
        names = [o.name for o in self.form.inputs]
        names += [f"p{n}" for n in range(len(self.linear.parameters))]
        return [*names, *others, *self.integers()]

    def integers(self) -> list[str]:
        """Return the inputs that are int32."""
        names = ["set_index"] if self.fused.num_sets else []
        return names + (["receivers"] if self.form.on_graph else [])

    def kernel(self, stem: str, note: str, inputs, outputs: dict, shares: int) -> FusedKernel:
        """Return the kernel of the lines so far.

        Args:
          outputs: dtypes by name.
        """
        note = f"{note}\n{self.form!r}\nmixed to {self.linear.irreps_out}"
        scalars, integers = self.scalars(), self.integers()
        spec = self.spec(stem, note, inputs, integers, scalars, outputs, self.warps)
        return FusedKernel(spec, tuple(inputs), tuple(outputs), shares)

    def scalars(self) -> tuple[str, ...]:
        """Return names of the scalars that it is called with."""
        return ("num_rows",)

    # rows and channels

    def begin(self, shares: int):
        """Find the rows of this program, and its number `share` of those that have the same rows.

        Where there are fewer rows than in a tile, it reads the last one several times.
        """
        self.emit("program = tl.program_id(0)")
        self.emit(f"share = program % {shares}")
        self.rows_from(f"program // {shares} * {self.rows}", "num_rows")

    def rows_from(self, first: str, stop: str):
        """Write which rows a tile has."""
        self.emit(f"first = {first}")
        self.emit(f"inside = tl.arange(0, {self.rows})[:, None]")
        self.emit(f"present = inside < {stop} - first")
        self.emit(f"inside = tl.minimum(inside, {stop} - 1 - first)")
        self.emit("row = first.to(tl.int64) + inside")
        if self.fused.num_sets:
            self.emit("set_index = tl.load(set_index_ptr + row)")
        if self.form.on_graph:
            self.emit("node = tl.load(receivers_ptr + row).to(tl.int64)")

    def row_pointers(self, operands):
        """Write where the first row of a tile begins, and offsets of its rows from there."""
        for operand in operands:
            name, size = operand.name, operand.size
            of_node = operand.index is Index.RECEIVER
            start = f"node * {size}" if of_node else f"first.to(tl.int64) * {size}"
            self.emit(f"{name}_first = {name}_ptr + {start}")
            self.emit(f"{name}_row = {'0' if of_node else f'inside * {size}'}")

    @contextlib.contextmanager
    def all_channels(self):
        """Write a loop over chunks of channels, if there are several; see `lanes`."""
        if self.chunks == 1:
            self.emit("chunk = 0")
            yield
        else:
            with self.block(f"for chunk in tl.range(0, {self.chunks}, num_stages=1):"):
                yield

    def lanes(self, operands):
        """Write the channels of a chunk, [1, CHANNELS], and which channels operands have.

        The mask of segments of 40 channels is `in_40`.
        """
        self.emit(f"lane = (chunk * {self.channels} + tl.arange(0, {self.channels}))[None, :]")
        for mul in sorted({s.mul for o in operands if o.channels for s in o.segments}):
            if not self.fills(mul):
                self.emit(f"in_{mul} = lane < {mul}")

    def fills(self, mul: int) -> bool:
        """Return whether segments of so many channels have all channels of all chunks."""
        return mul == self.chunks * self.channels

    def apart(self, number: int):
        """Return a block of its own, which always runs, for what one segment of the product takes.

        Compilers compute a value where it is used: without blocks they add up all segments at the
        end, and keep the factors until then. What a block adds to a sum is computed in it.
        """
        return self.block(f"if num_rows != {-1 - number}:")

    # the product

    def place(self, operand, segment, component: int) -> tuple[str, str]:
        """Return the address of a component, and its mask, "" where there is none."""
        offset = segment.offset + component * segment.component_stride
        start = f"{operand.name}_first + ({operand.name}_row + {offset}"
        if not operand.channels:
            return f"{start})", ""
        mask = "" if self.fills(segment.mul) else f"in_{segment.mul}"
        return f"{start} + lane * {segment.channel_stride})", mask

    def load_component(self, operand, segment, component, name):
        """Write the load of a component, as `ArithmeticEmitter` asks for it."""
        address, mask = self.place(operand, segment, component)
        self.emit(f"{name} = {self.widened(self.loaded_where(address, mask))}")

    def loaded_where(self, address: str, *masks: str) -> str:
        """Return the text of what lies there, zero where a mask is not true; "" is no mask."""
        mask = " & ".join(f"({m})" for m in masks if m)
        return f"tl.load({address}, mask={mask}, other=0.0)" if mask else f"tl.load({address})"

    def zeros(self, *shape: int) -> str:
        return f"tl.zeros([{', '.join(map(str, shape))}], {self.real})"

    def arithmetic(self, form: Form, paths, given=()):
        """Add what paths of a form compute to variables, the components of its outputs.

        Args:
          given: components of inputs that are variables already.
        """
        part = Form(form.inputs, form.outputs, tuple(paths))
        emitter = ArithmeticEmitter(part, self.load_component, self.emit)
        emitter.loaded(given)

        def accumulator(path):
            operand = part.outputs[path.output.operand]

            def accumulate(component, expression):
                name = component_name(operand, path.output.segment, component)
                self.emit(f"{name} += {expression}")

            return accumulate

        emitter.add_groups(ordered_groups(part), accumulator)

    def names_of(self, operand, segment: int) -> list[str]:
        """Return the variables of the components of a segment."""
        dim = operand.segments[segment].dim
        return [component_name(operand, segment, k) for k in range(dim)]

    def product(self, segment: int) -> list[str]:
        """Return the components of a segment of the product, [ROWS, CHANNELS]."""
        names = self.names_of(self.out, segment)
        for name in names:
            self.emit(f"{name} = {self.zeros(self.rows, self.channels)}")
        paths = [p for p in self.form.paths if p.output.segment == segment]
        self.arithmetic(self.form, paths)
        return names

    def segments(self) -> list[int]:
        """Return the segments of the product that are computed, those of a block together."""
        written = {path.output.segment for path in self.form.paths}
        return [
            n
            for block in self.linear.blocks_in
            for n in sorted(written)
            if block.holds(self.out.segments[n])
        ]

    # the Linear

    def terms_of(self, segment: int) -> list[Term]:
        """Return the matrices that read a segment of the product."""
        held = [b.holds(self.out.segments[segment]) for b in self.linear.blocks_in]
        terms = self.linear.linear_form.terms
        return [t for t in terms if t.x is not None and held[t.x.block]]

    def rows_of(self, segment: int, term: Term) -> tuple[int, int]:
        """Return (first, step): channel u of a segment has row first + u * step of a matrix."""
        s, block = self.out.segments[segment], self.linear.blocks_in[term.x.block]
        return (s.offset - block.offset) // s.dim, s.channel_stride // s.dim

    def parameter(self, term: Term, which: str) -> str:
        """Return the pointer to a parameter, of the set `which` if there are several."""
        n = term.w - 1
        if not self.fused.num_sets:
            return f"p{n}_ptr"
        return (
            f"p{n}_ptr + tl.cast({which}, tl.int64) * {math.prod(self.linear.parameters[n].shape)}"
        )

    @contextlib.contextmanager
    def sets(self):
        """Write a loop over the sets of weights, if rows choose one of several."""
        if not self.fused.num_sets:
            yield
        else:
            with self.block(f"for which in tl.range(0, {self.fused.num_sets}, num_stages=1):"):
                yield

    def of_set(self, left: str) -> str:
        """Return a factor of the rows that have the set `which` of weights, zero for others."""
        return f"tl.where(set_index == which, {left}, 0.0)" if self.fused.num_sets else left

    def add_dot(self, total: str, left: str, right: str):
        """Add a matmul of factors to `total`."""
        if self.dtype != self.wide:
            left = f"({left}).to(tl.{self.dtype})"
        self.emit(
            f"{total} = tl.dot({left}, {right}, {total}, "
            f"input_precision={self.input_precision!r}, out_dtype={self.real})"
        )

    # the pre-activation

    def dim(self, part: Part) -> int:
        """Return components of a part."""
        return self.linear.blocks_out[part.block].dim

    def column(self, start: int) -> str:
        """Return the columns of a tile of the gate, from `start` of the current ones on."""
        return self.name(f"(column + {start} + tl.arange(0, {self.columns}))[None, :]")

    def mask_of(self, v: str, mul: int) -> str:
        """Return which elements of a tile a part of so many columns has."""
        return f"present & ({v} < {mul})"


def width_for(mul: int) -> int:
    """Return the columns of tiles for so many channels."""
    return min(max(power_of_two(mul), WIDTHS[0]), WIDTHS[-1])
