"""A fused op, and its backward, as the text of one Triton kernel each.

A program owns some rows of the output (nodes of a graph, or rows of a batch) and all channels. For
each irrep it computes the product's components into registers (over a graph: walking the edges of
its nodes), stacks them into a tile [rows * components, channels] and multiplies that by the
matrices of the Linear; so the product itself is never written to memory. Rows of the batch axis
are `ROWS`, components are padded with zeros to a power of two.
"""

import contextlib
import dataclasses

from eqfuse.ops import _activation
from eqfuse.ops._body import Body, component_name, ordered_groups
from eqfuse.ops._form import Form, Index, Operand
from eqfuse.ops._fused import Fused
from eqfuse.ops._kernel import pointer_type_name
from eqfuse.ops._mixing import Block, Matrix, Part
from eqfuse.ops._triton.spec import KernelSpec

THREADS = 128
LEAST_DOT = 16
"""Triton's matrix products take at least 16 rows, columns and terms."""


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclasses.dataclass(frozen=True)
class FusedKernel:
    """A kernel of a fused op and what it is called with.

    Attributes:
      inputs: names of its inputs: operands of the op and index arrays.
      outputs: names of its outputs.
      rows_per_program: rows of the output of one program (backward: of one step of it).
    """

    spec: KernelSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rows_per_program: int


class Writer:
    """What forward and backward share: the product in registers, tiles and masks."""

    def __init__(self, fused: Fused, dtype: str):
        self.fused, self.form, self.dtype = fused, fused.form, dtype
        self.mixing = fused.mixing
        self.real = "tl.float64" if dtype == "float64" else "tl.float32"
        self.on_graph = self.form.on_graph
        self.channels = min(max(power_of_two(self.form.max_mul), LEAST_DOT), THREADS)
        self.chunks = -(-self.form.max_mul // self.channels)
        self.rows = 1 if fused.num_indexed else max(1, THREADS // self.channels)
        self.warps = max(1, self.rows * self.channels // 32)
        self.lines: list[str] = []
        self.indent = 1
        self.names = 0
        [self.out] = self.form.outputs
        written = {path.output.segment for path in self.form.paths}
        self.segments = {
            b: [n for n in sorted(written) if self._within(self.out.segments[n], block)]
            for b, block in enumerate(self.mixing.blocks_in)
        }

    @staticmethod
    def _within(segment, block: Block) -> bool:
        stop = block.offset + block.mul * block.dim
        return segment.dim == block.dim and block.offset <= segment.offset < stop

    def emit(self, line: str):
        self.lines.append("    " * self.indent + line)

    @contextlib.contextmanager
    def block(self, head: str):
        self.emit(head)
        self.indent += 1
        yield
        self.indent -= 1

    def name(self, text: str) -> str:
        """A variable that holds the value of `text`."""
        self.names += 1
        self.emit(f"t{self.names} = {text}")
        return f"t{self.names}"

    def product_inputs(self) -> list[str]:
        arrays = []
        if self.on_graph:
            arrays = ["senders", "receiver_order", "receiver_ptr"]
        return [o.name for o in self.form.inputs] + arrays

    def spec(self, stem: str, inputs, integers, scalars, outputs) -> KernelSpec:
        """The kernel with these parameters and the lines written so far."""
        real = pointer_type_name(self.dtype)
        names = [f"{n}_ptr" for n in inputs] + list(scalars) + [f"{n}_ptr" for n in outputs]
        wide = pointer_type_name("float64" if self.dtype == "float64" else "float32")
        source = "\n".join(
            [
                *(f"# {line}" for line in repr(self.form).splitlines()),
                f"# {self.mixing.irreps_out} -> {self.fused.gate.irreps_out}",
                "import triton",
                "import triton.language as tl",
                "",
                "",
                "@triton.jit",
                f"def KERNEL({', '.join(names)}):",
                *self.lines,
                "",
            ]
        )
        return KernelSpec.build(
            stem,
            source,
            ["*i32" if n in integers else real for n in inputs],
            [wide if n == "dweights" else real for n in outputs],
            scalars,
            self.warps,
        )

    def row_prologue(self, block: str):
        """The rows of block number `block`, as [ROWS, 1] and [ROWS, 1, 1]."""
        r = self.rows
        self.emit(f"row = (({block}).to(tl.int64) * {r} + tl.arange(0, {r}))[:, None]")
        self.emit("present = row < num_rows")
        self.emit(f"row3 = tl.reshape(row, ({r}, 1, 1))")
        self.emit("present3 = row3 < num_rows")
        if self.fused.num_indexed:
            self.emit("which = tl.load(which_ptr + row, mask=present, other=0).to(tl.int64)")
            self.emit("which = tl.max(which)")
        if self.on_graph:
            for what, shift in (("start", ""), ("stop", " + 1")):
                self.emit(f"{what} = tl.load(receiver_ptr_ptr + row{shift}, mask=present, other=0)")
            self.emit("longest = tl.max(stop - start)")

    @contextlib.contextmanager
    def channel_chunks(self):
        """Once for each chunk of channels; `lane` is [1, CHANNELS]."""
        lane = f"tl.arange(0, {self.channels})"
        if self.chunks == 1:
            self.emit(f"lane = {lane}[None, :]")
            yield
        else:
            with self.block(f"for chunk in range({self.chunks}):"):
                self.emit(f"lane = (chunk * {self.channels} + {lane})[None, :]")
                yield

    def masks(self, present: str, operands):
        muls = {s.mul for o in operands if o.channels for s in o.segments}
        for mul in sorted(muls):
            self.emit(f"in_{mul} = {present} & (lane < {mul})")

    def place(self, operand: Operand, segment, component: int, present: str):
        offset = segment.offset + component * segment.component_stride
        if not operand.channels:
            return f"{offset}", present
        return f"{offset} + lane * {segment.channel_stride}", f"in_{segment.mul}"

    def loader(self, present: str):
        def load(operand, segment, component, name):
            place, mask = self.place(operand, segment, component, present)
            wide = "" if self.dtype in ("float32", "float64") else f".to({self.real})"
            self.emit(
                f"{name} = tl.load({operand.name}_row + {place}, mask={mask}, other=0.0){wide}"
            )

        return load

    def product(self, segments: list[int]) -> dict[int, list[str]]:
        """The components of these segments of the product, as [ROWS, CHANNELS] variables."""
        paths = [p for p in self.form.paths if p.output.segment in segments]
        part = Form(self.form.inputs, self.form.outputs, tuple(paths))
        used = [o for o, keep in zip(part.inputs, part.used_inputs(), strict=True) if keep]
        names = {
            n: [component_name(self.out, n, k) for k in range(self.out.segments[n].dim)]
            for n in segments
        }
        for components in names.values():
            for name in components:
                self.emit(f"{name} = tl.zeros([{self.rows}, {self.channels}], {self.real})")
        if not self.on_graph:
            self.masks("present", [*used, self.out])
            for operand in used:
                self.emit(f"{operand.name}_row = {operand.name}_ptr + row * {operand.size}")
            self._statements(part, "present")
            return names
        self.emit("step = start * 0")
        self.emit("walked = longest * 0")
        with self.block("while walked < longest:"):
            self.emit("active = present & (start + step < stop)")
            edge = "tl.load(receiver_order_ptr + start + step, mask=active, other=0)"
            self.emit(f"edge = {edge}.to(tl.int64)")
            self.emit("sender = tl.load(senders_ptr + edge, mask=active, other=0).to(tl.int64)")
            self.masks("active", [*used, self.out])
            rows = {Index.ROW: "edge", Index.SENDER: "sender", Index.RECEIVER: "row"}
            for operand in used:
                row = rows[operand.index]
                self.emit(f"{operand.name}_row = {operand.name}_ptr + {row} * {operand.size}")
            self._statements(part, "active")
            self.emit("step += 1")
            self.emit("walked += 1")
        return names

    def _statements(self, part: Form, present: str):
        body = Body(part, self.loader(present), self.emit)
        for group in ordered_groups(part):
            body.new_group()
            for path in group:

                def accumulate(component, expression, segment=path.output.segment):
                    name = component_name(self.out, segment, component)
                    self.emit(f"{name} += {expression}")

                body.add_path(path, accumulate)

    def padded(self, dim: int) -> int:
        """Components of a tile: a power of two, so that rows times components suffice for a dot."""
        return max(power_of_two(dim), LEAST_DOT // self.rows)

    def stacked(self, components: list[str], padded: int) -> str:
        """[ROWS * padded, CHANNELS] from variables [ROWS, CHANNELS], zeros after the last."""
        zero = f"tl.zeros([{self.rows}, {self.channels}], {self.real})"
        parts = components + [zero] * (padded - len(components))

        def joined(parts):
            if len(parts) == 1:
                return parts[0]
            return f"tl.join({joined(parts[0::2])}, {joined(parts[1::2])})"

        tile = f"tl.reshape({joined(parts)}, ({self.rows}, {self.channels}, {padded}))"
        tile = f"tl.permute({tile}, (0, 2, 1))"
        return self.name(f"tl.reshape({tile}, ({self.rows * padded}, {self.channels}))")

    def unstacked(self, tile: str, padded: int, count: int) -> list[str]:
        """The inverse of `stacked`: the first `count` components of a tile."""
        tile = (
            f"tl.permute(tl.reshape({tile}, ({self.rows}, {padded}, {self.channels})), (0, 2, 1))"
        )

        def separated(text, size):
            if size == 1:
                return [self.name(f"tl.reshape({text}, ({self.rows}, {self.channels}))")]
            halves = f"tl.reshape({text}, ({self.rows}, {self.channels}, {size // 2}, 2))"
            self.names += 2
            even, odd = f"t{self.names - 1}", f"t{self.names}"
            self.emit(f"{even}, {odd} = tl.split({halves})")
            even, odd = separated(even, size // 2), separated(odd, size // 2)
            return [name for pair in zip(even, odd, strict=True) for name in pair]

        return separated(tile, padded)[:count]

    def dot(self, left: str, right: str) -> str:
        precision = self.fused.input_precision
        return f"tl.dot({left}, {right}, input_precision={precision!r}, out_dtype={self.real})"

    def matrix_place(self, matrix: Matrix, segment: int, part: Part, transposed: bool):
        """Offsets and mask of the rows of a matrix for a segment, and of its columns for a part."""
        out_mul = self.mixing.blocks_out[matrix.block_out].mul
        block = self.mixing.blocks_in[matrix.block_in]
        s = self.out.segments[segment]
        first = matrix.start + (s.offset - block.offset) // s.dim * out_mul + part.first
        step = s.channel_stride // s.dim * out_mul
        width = max(power_of_two(part.mul), LEAST_DOT)
        u, v = f"tl.reshape(lane, ({self.channels}, 1))", f"tl.arange(0, {width})[None, :]"
        if transposed:
            u, v = "lane", f"tl.arange(0, {width})[:, None]"
        return f"{first} + {u} * {step} + {v}", f"({u} < {s.mul}) & ({v} < {part.mul})"

    def matrix(self, matrix: Matrix, segment: int, part: Part, transposed: bool = False) -> str:
        """The matrix, [CHANNELS, columns] or its transpose, scaled."""
        place, mask = self.matrix_place(matrix, segment, part, transposed)
        row = (
            f"weights_ptr + which * {self.mixing.num_weights}"
            if self.fused.num_indexed
            else ("weights_ptr")
        )
        value = f"tl.load({row} + {place}, mask={mask}, other=0.0).to({self.real})"
        return self.name(value if matrix.scale == 1.0 else f"{matrix.scale!r} * {value}")

    def into(self, part: Part) -> list[Matrix]:
        return [m for m in self.mixing.matrices if m.block_out == part.block]

    def tile_place(self, size: int, offset: int, part: Part, dim: int):
        """Offsets and mask of a part of rows of `size`, as [ROWS, components, columns]."""
        padded, width = self.padded(dim), max(power_of_two(part.mul), LEAST_DOT)
        k, v = f"tl.arange(0, {padded})[None, :, None]", f"tl.arange(0, {width})[None, None, :]"
        place = f"row3 * {size} + {offset} + {v} * {dim} + {k}"
        return place, f"present3 & ({k} < {dim}) & ({v} < {part.mul})"

    def load_tile(self, pointer: str, size: int, offset: int, part: Part, dim: int) -> str:
        place, mask = self.tile_place(size, offset, part, dim)
        return self.name(
            f"tl.load({pointer}_ptr + {place}, mask={mask}, other=0.0).to({self.real})"
        )

    def store_tile(self, pointer: str, size: int, offset: int, part: Part, dim: int, value: str):
        place, mask = self.tile_place(size, offset, part, dim)
        self.emit(f"tl.store({pointer}_ptr + {place}, {value}, mask={mask})")

    def offset(self, part: Part) -> int:
        block = self.mixing.blocks_out[part.block]
        return block.offset + part.first * block.dim

    def activated(self, act, x: str, derivative: bool = False) -> str:
        statements, expression = _activation.triton_text(act, x, derivative)
        for statement in statements:
            self.emit(statement)
        return self.name(expression)

    def parts(self) -> list[Part]:
        """Every part of the mixed row that a tile reads, scalars first."""
        parts = {t.part for t in self.fused.gate.tiles}
        parts |= {t.gate for t in self.fused.gate.tiles if t.gate}
        blocks = self.mixing.blocks_out
        return sorted(parts, key=lambda p: (blocks[p.block].dim, p.block, p.first))

    def parts_by_input(self):
        """(number of a block of the product, or None, and the parts that are mixed from it)."""
        groups: dict[int | None, list[Part]] = {}
        for part in self.parts():
            source = [m.block_in for m in self.into(part) if self.segments[m.block_in]]
            groups.setdefault(source[0] if source else None, []).append(part)
        return groups.items()


def forward(fused: Fused, dtype: str) -> FusedKernel:
    """The kernel of a fused op: writes the output and the mixed row before the gate."""
    w = Writer(fused, dtype)
    integers = (["which"] if fused.num_indexed else []) + w.product_inputs()[len(w.form.inputs) :]
    inputs = [o.name for o in w.form.inputs] + ["weights"] + ["skip"] * fused.skip + integers
    w.row_prologue("tl.program_id(0)")
    mixed: dict[Part, str] = {}
    for source, parts in w.parts_by_input():
        for part in parts:
            dim = w.mixing.blocks_out[part.block].dim
            shape = [w.rows * w.padded(dim), max(power_of_two(part.mul), LEAST_DOT)]
            mixed[part] = f"z_{part.block}_{part.first}"
            w.emit(f"{mixed[part]} = tl.zeros({shape}, {w.real})")
        if source is not None:
            with w.channel_chunks():
                _mix(w, source, parts, mixed)
        for part in parts:
            _finish_mixed(w, part, mixed)
    for tile in fused.gate.tiles:
        dim = w.mixing.blocks_out[tile.part.block].dim
        z = mixed[tile.part]
        if tile.gate:
            value = w.name(f"{_gate_value(w, tile, mixed[tile.gate])} * {z}")
        else:
            value = w.activated(tile.act, z)
        w.store_tile("result", fused.gate.irreps_out.dim, tile.offset, tile.part, dim, value)
    outputs = ["result", "mixed"]
    spec = w.spec("fused", inputs, integers, ("num_rows",), outputs)
    return FusedKernel(spec, tuple(inputs), tuple(outputs), w.rows)


def _mix(w: Writer, source: int, parts: list[Part], mixed):
    names = w.product(w.segments[source])
    for segment, components in names.items():
        stacked = w.stacked(components, w.padded(len(components)))
        for part in parts:
            for matrix in w.into(part):
                w.emit(f"{mixed[part]} += {w.dot(stacked, w.matrix(matrix, segment, part))}")


def _finish_mixed(w: Writer, part: Part, mixed):
    """Bias and skip, and the mixed row as an output; the tile becomes three-dimensional."""
    fused, dim = w.fused, w.mixing.blocks_out[part.block].dim
    width = max(power_of_two(part.mul), LEAST_DOT)
    z = mixed[part]
    w.emit(f"{z} = tl.reshape({z}, ({w.rows}, {w.padded(dim)}, {width}))")
    for start, _, block in w.mixing.biases:
        if block == part.block:
            v = f"tl.arange(0, {width})[None, None, :]"
            row = f"weights_ptr + {start + part.first}"
            row += f" + which * {w.mixing.num_weights}" if fused.num_indexed else ""
            mask = f"({v} < {part.mul}) & (tl.arange(0, {w.padded(dim)})[None, :, None] < 1)"
            w.emit(f"{z} += tl.load({row} + {v}, mask={mask}, other=0.0).to({w.real})")
    if fused.skip:
        w.emit(f"{z} += {w.load_tile('skip', w.mixing.size_out, w.offset(part), part, dim)}")
    w.store_tile("mixed", w.mixing.size_out, w.offset(part), part, dim, z)


def _gate_value(w: Writer, tile, z: str, derivative: bool = False) -> str:
    """act(gate), or its derivative, [ROWS, 1, columns]: the gate is the first component of z."""
    first = w.name(f"tl.sum({z}, axis=1, keep_dims=True)")
    return w.activated(tile.act, first, derivative)
