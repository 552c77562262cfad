"""What the fused kernels share: the product in registers, and its tiles, cut for matmuls.

A program owns `rows` rows. It computes the product's components, each [rows, channels], and stacks
those of a segment into a tile [rows * components, channels]. `piece` cuts columns out of such a
tile in a loop, so that the code of a matmul does not grow with the channels.
"""

import contextlib

from eqfuse.ops.backends.triton.emit.arithmetic import ArithmeticEmitter
from eqfuse.ops.backends.triton.emit.emitter import SLICE, component_name, power_of_two
from eqfuse.ops.backends.triton.emit.preactivation import THREADS, PreactivationEmitter
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.fused import COMPONENTS, Fused
from eqfuse.ops.ir.operands import Index, Operand
from eqfuse.ops.ir.schedule import ordered_groups

LANES = 32
"""Channels at a time of a kernel with several threads for each: few, so that it has many rows."""


class FusedEmitter(PreactivationEmitter):
    """Writes a fused kernel.

    Args:
      fused: the op.
      dtype: of its operands, a numpy name.
      least: rows times components of a tile, at least.
      threads: how many have the same channel of the same row; they share matmuls.
    """

    def __init__(self, fused: Fused, dtype: str, least: int, threads: int = 1):
        super().__init__(dtype, fused.linear.linear_form.input_precision)
        self.fused, self.form, self.linear, self.least = fused, fused.form, fused.linear, least
        self.by_receiver = self.form.on_graph
        most = THREADS if threads == 1 else LANES
        self.channels = min(max(power_of_two(self.form.max_mul), SLICE), most)
        self.chunks, self.shares = -(-self.form.max_mul // self.channels), 1
        threads *= 2 if dtype == "float64" else 1  # whose values take two registers
        self.rows = 1 if fused.num_sets else max(1, THREADS // (threads * self.channels))
        blocks = self.linear.blocks_out
        self.tiles = [
            piece
            for tile in (fused.gate.tiles if fused.gate else ())
            for dim in [blocks[tile.part.block].dim]
            for piece in tile.cut(dim, self.most_columns(dim))
        ]
        [self.out] = self.form.outputs
        written = {path.output.segment for path in self.form.paths}
        self.segments = {
            b: [n for n in sorted(written) if block.holds(self.out.segments[n])]
            for b, block in enumerate(self.linear.blocks_in)
        }

    # what a kernel is called with

    def inputs(self, *others: str) -> list[str]:
        """Return operands of the product, parameters, `others`, and index arrays."""
        names = [o.name for o in self.form.inputs]
        names += [f"p{n}" for n in range(len(self.linear.parameters))]
        return [*names, *others, *self.integers()]

    def integers(self) -> list[str]:
        """Return the inputs that are int32."""
        names = ["set_index"] if self.fused.num_sets else []
        return names + (["receivers"] if self.by_receiver else [])

    # rows and channels

    def row_prologue(self):
        """Find the rows of this program, as [ROWS, 1] and [ROWS, 1, 1]."""
        r, block = self.rows, "tl.program_id(0)"
        if self.shares > 1:
            self.emit(f"chunk = {block} % {self.shares}")
            block = f"{block} // {self.shares}"
        self.emit(f"row = (({block}).to(tl.int64) * {r} + tl.arange(0, {r}))[:, None]")
        self.emit("present = row < num_rows")
        self.emit(f"row3 = tl.reshape(row, ({r}, 1, 1))")
        self.emit("present3 = row3 < num_rows")
        if self.fused.num_sets:
            self.emit(
                "set_index = tl.load(set_index_ptr + row, mask=present, other=0).to(tl.int64)"
            )
            self.emit("set_index = tl.max(set_index)")
        if self.by_receiver:
            self.emit("node = tl.load(receivers_ptr + row, mask=present, other=0).to(tl.int64)")

    @contextlib.contextmanager
    def channel_chunks(self):
        """Loop over the chunks of channels of this program; `lane` is [1, CHANNELS]."""
        lane = f"tl.arange(0, {self.channels})"
        if self.shares > 1:
            self.emit(f"lane = (chunk * {self.channels} + {lane})[None, :]")
            yield
        elif self.chunks == 1:
            self.emit("chunk = 0")
            self.emit(f"lane = {lane}[None, :]")
            yield
        else:
            with self.block(f"for chunk in tl.range(0, {self.chunks}, num_stages=1):"):
                self.emit(f"lane = (chunk * {self.channels} + {lane})[None, :]")
                yield

    def masks(self, operands):
        """Write which channels each operand has: in_64 for segments of 64, and so on."""
        muls = {s.mul for o in operands if o.channels for s in o.segments}
        for mul in sorted(muls):
            self.emit(f"in_{mul} = present & (lane < {mul})")

    # the product

    def place(self, operand: Operand, segment, component: int):
        """Return where a component lies in its row, and its mask."""
        offset = segment.offset + component * segment.component_stride
        if not operand.channels:
            return f"{offset}", "present"
        return f"{offset} + lane * {segment.channel_stride}", f"in_{segment.mul}"

    def load_component(self, operand, segment, component, name):
        """Write the load of a component, as `ArithmeticEmitter` asks for it."""
        place, mask = self.place(operand, segment, component)
        self.emit(f"{name} = {self.loaded(f'{operand.name}_row + {place}', mask)}")

    def zeros(self, *shape: int) -> str:
        return f"tl.zeros([{', '.join(map(str, shape))}], {self.real})"

    def together(self, segments: list[int]) -> list[list[int]]:
        """Return segments of the product that are computed together, in registers."""
        most = COMPONENTS // (4 if self.dtype == "float64" else 1)  # products are held besides
        groups: list[list[int]] = []
        for n in segments:
            joined = [*groups[-1], n] if groups else []
            if joined and sum(self.out.segments[s].dim for s in joined) <= most:
                groups[-1] = joined
            else:
                groups.append([n])
        return groups

    def product(self, segments: list[int]) -> dict[int, list[str]]:
        """Return the components of these segments of the product, as [ROWS, CHANNELS] variables."""
        paths = [p for p in self.form.paths if p.output.segment in segments]
        part = Form(self.form.inputs, self.form.outputs, tuple(paths))
        used = [o for o, keep in zip(part.inputs, part.used_inputs(), strict=True) if keep]
        names = {
            n: [component_name(self.out, n, k) for k in range(self.out.segments[n].dim)]
            for n in segments
        }
        for name in (name for components in names.values() for name in components):
            self.emit(f"{name} = {self.zeros(self.rows, self.channels)}")
        self.masks([*used, self.out])
        self.row_pointers(used)

        def accumulator(path):
            def accumulate(component, expression):
                name = component_name(self.out, path.output.segment, component)
                self.emit(f"{name} += {expression}")

            return accumulate

        arithmetic = ArithmeticEmitter(part, self.load_component, self.emit)
        arithmetic.add_groups(ordered_groups(part), accumulator)
        return names

    def row_pointers(self, operands):
        """Write where the row of each operand begins."""
        for operand in operands:
            row = "row" if operand.index is Index.ROW else "node"
            self.emit(f"{operand.name}_row = {operand.name}_ptr + {row} * {operand.size}")

    # tiles

    def stacked(self, components: list[str]) -> str:
        """Return [ROWS * padded, CHANNELS] from variables [ROWS, CHANNELS], padded with zeros."""
        padded = self.padded(len(components))
        zero = self.zeros(self.rows, self.channels)
        parts = components + [zero] * (padded - len(components))

        def joined(parts):
            if len(parts) == 1:
                return parts[0]
            return f"tl.join({joined(parts[0::2])}, {joined(parts[1::2])})"

        tile = f"tl.reshape({joined(parts)}, ({self.rows}, {self.channels}, {padded}))"
        tile = f"tl.permute({tile}, (0, 2, 1))"
        return self.name(f"tl.reshape({tile}, ({self.rows * padded}, {self.channels}))")

    def unstacked(self, tile: str, count: int) -> list[str]:
        """Return the inverse of `stacked`: the `count` components of a tile."""
        padded = self.padded(count)
        shape = (self.rows, padded, self.channels)
        tile = f"tl.permute(tl.reshape({tile}, {shape}), (0, 2, 1))"

        def separated(text, size):
            if size == 1:
                return [self.name(f"tl.reshape({text}, ({self.rows}, {self.channels}))")]
            halves = f"tl.reshape({text}, ({self.rows}, {self.channels}, {size // 2}, 2))"
            even, odd = self.fresh(), self.fresh()
            self.emit(f"{even}, {odd} = tl.split({halves})")
            even, odd = separated(even, size // 2), separated(odd, size // 2)
            return [name for pair in zip(even, odd, strict=True) for name in pair]

        return separated(tile, padded)[:count]

    def piece(self, tile: str, height: int) -> str:
        """Return columns `at` to `at` + SLICE of a tile."""
        columns = f"(at + tl.arange(0, {SLICE}))[None, :]"
        return self.name(f"tl.gather({tile}, tl.broadcast_to({columns}, ({height}, {SLICE})), 1)")
