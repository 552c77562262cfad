"""The backward of a fused op as one Triton kernel.

It takes the cotangents through the gate and the Linear, recomputes the product, and adds up the
gradients of the parameters; each program walks some of the rows in order and keeps sums of its own,
which `triton.codegen.linear_kernel.reduction` adds: repeatable bit for bit.

Over rows of a batch it goes on to the gradients of the product's operands in registers. On a graph
those of the senders' features are sums over other edges than the program owns; there it writes the
cotangent of the summed product, per node, for the product's own backward kernel, and the blocks of
the product are divided among `groups` of programs.
"""

from eqfuse.ops.algebra.fused import Fused
from eqfuse.ops.algebra.gates import Part
from eqfuse.ops.algebra.linear_form import Term
from eqfuse.ops.triton.codegen.fused_forward import FusedKernel, activated, gate_value
from eqfuse.ops.triton.codegen.fused_operands import OperandGradients
from eqfuse.ops.triton.codegen.lines import SLICE

CLEARED = 1024


def backward(fused: Fused, wanted, given, dtype: str) -> FusedKernel:
    """Return the kernel of the backward: of the operands `wanted`, from the cotangents `given`.

    Outputs, where wanted: dproduct (on a graph), or the cotangents of the form's inputs; own0,
    own1, ..., the sums of the parameters' gradients, [programs, ...]; dskip.
    """
    return _Backward(fused, wanted, given, dtype).kernel()


class _Backward(OperandGradients):
    def __init__(self, fused: Fused, wanted, given, dtype: str):
        super().__init__(fused, wanted, dtype)
        self.given = fused.cotangents(given)
        operands, parameters, skip = fused.operands(wanted)
        self.wants_operands = any(operands)
        self.wanted = [n for n, want in enumerate(parameters) if want]
        self.wants_skip = bool(skip)

    def wants(self, term: Term) -> bool:
        """Return whether the gradient of this parameter is wanted."""
        return term.w - 1 in self.wanted

    def kernel(self) -> FusedKernel:
        """Return the whole text."""
        outputs = {}
        if self.in_registers:
            outputs = {o.name: self.dtype for o in self.cotangents.outputs}
        elif self.wants_operands:
            outputs = {"dproduct": self.dtype}
        outputs |= {f"d{n}": self.wide for n in self.wanted}
        outputs |= {"dskip": self.dtype} if self.wants_skip else {}
        by_row, by_sum = self._groups()
        self.emit(f"blocks = (num_rows + {self.rows - 1}) // {self.rows}")
        self.emit("program = tl.program_id(0)")
        for group in by_row:
            with self.block("if (program >= 0) & (program < blocks):"):
                self._operands_of(group)
            self.emit("program -= blocks")
        for group in by_sum:
            with self.block("if (program >= 0) & (program < num_sums):"):
                self._sums_of(group)
            self.emit("program -= num_sums")
        inputs = self.inputs(*(["z"] if "ct_out" in self.given else []), *self.given)
        note = f"backward of\n{self.form!r}\nmixed to {self.linear.irreps_out}"
        scalars = ("num_rows", "num_sums")
        spec = self.spec("fused_backward", note, inputs, self.integers(), scalars, outputs)
        numbers = len(by_row), len(by_sum)
        return FusedKernel(spec, tuple(inputs), tuple(outputs), self.rows, *numbers)

    def _groups(self):
        """Return what programs divide among them: those for the operands' rows, those
        for the sums.
        """
        groups = [[group] for group in self.parts_by_input()]
        by_row = []
        if self.in_registers:
            by_row = [self.parts_by_input()]
        elif self.wants_operands or self.wants_skip:
            by_row = groups
        return by_row, [group for group in groups if self._wanted_terms(group)]

    def _wanted_terms(self, group) -> list[Term]:
        blocks = {part.block for _, parts in group for part in parts}
        return [
            t
            for t in self.linear.linear_form.terms
            if self.linear.block_of(t) in blocks and self.wants(t)
        ]

    def _operands_of(self, group):
        """Write the cotangents of the product and of the skip; the program has one
        block of rows.
        """
        self.row_prologue("program")
        dz = self._cotangents(group)
        if self.wants_skip:
            for part, cotangent in dz.items():
                shape = (self.rows, self.padded(self.dim(part)), self.width(part))
                cotangent = f"tl.reshape({cotangent}, {shape})"
                self.store_tile("dskip", self.linear.size_out, self.offset(part), part, cotangent)
        sources = [(source, parts) for source, parts in group if source is not None]
        if self.summed and self.wants_operands:
            for source, parts in sources:
                self._store_dproduct(source, parts, dz)
        elif self.wants_operands:
            self.in_registers_of(sources, dz)

    def _sums_of(self, group):
        """Write the gradients of parameters, summed over every `num_sums`-th block of rows."""
        self._clear(self._wanted_terms(group))
        self.emit("number = program")
        with self.block("while number < blocks:"):
            self.row_prologue("number")
            dz = self._cotangents(group)
            for part in (part for _, parts in group for part in parts):
                self._bias_gradients(part, dz)
            with self.channel_chunks():
                for source, parts in group:
                    for segments in self.walks(self.segments.get(source, [])):
                        self._parameter_gradients(segments, parts, dz)
            self.emit("tl.debug_barrier()")  # sums in memory: the next step reads what this wrote
            self.emit("number += num_sums")

    def _clear(self, terms: list[Term]):
        """Write the program's own sums of the parameters' gradients, zero at first."""
        for n in sorted({term.w - 1 for term in terms}):
            size = self.parameter_size(n) * max(self.fused.num_sets, 1)
            self.emit(f"own{n} = d{n}_ptr + program.to(tl.int64) * {size}")
            with self.block(f"for at in tl.range(0, {size}, {CLEARED}, num_stages=1):"):
                self.emit(f"place = at + tl.arange(0, {CLEARED})")
                self.emit(f"tl.store(own{n} + place, {self.zeros(CLEARED)}, mask=place < {size})")
        self.emit("tl.debug_barrier()")

    # through the gate

    def _cotangents(self, group) -> dict[Part, str]:
        """Return the cotangents of the pre-activation, flat; none where the row is the output, in
        memory.
        """
        if self.fused.gate is None:
            return {}
        parts = [part for _, parts in group for part in parts]
        return {part: self.flat(part, self._cotangent(part)) for part in parts}

    def _cotangent(self, part: Part) -> str:
        """Return the cotangent of a part of the pre-activation, [ROWS, components, columns]."""
        size = self.linear.size_out
        if "ct_z" in self.given:
            value = self.load_tile(*self.place_of(part, "ct_"), part)
        else:
            value = self.name(self.zeros(self.rows, self.padded(self.dim(part)), self.width(part)))
        for tile in self.tiles if "ct_out" in self.given else ():
            if tile.part == part:
                ct = self.load_tile("ct_out", self.fused.sizes[0], tile.offset, part)
                if tile.gate is None:
                    z = self.load_tile("z", size, self.offset(part), part)
                    slope = activated(self, tile.act, z, True)
                else:
                    slope = self._gate(tile)
                value = self.name(f"{value} + {ct} * {slope}")
            if tile.gate == part:
                ct = self.load_tile("ct_out", self.fused.sizes[0], tile.offset, tile.part)
                z = self.load_tile("z", size, self.offset(tile.part), tile.part)
                total = self.name(f"tl.sum({ct} * {z}, axis=1, keep_dims=True)")
                k = f"tl.arange(0, {self.padded(1)})[None, :, None]"
                slope = self._gate(tile, derivative=True)
                value = self.name(f"{value} + tl.where({k} < 1, {total} * {slope}, 0.0)")
        return value

    def _gate(self, tile, derivative: bool = False) -> str:
        z = self.load_tile("z", self.linear.size_out, self.offset(tile.gate), tile.gate)
        return gate_value(self, tile, z, derivative)

    # the gradients of the parameters

    def _bias_gradients(self, part: Part, dz):
        for term in filter(self.wants, self.linear.biases(part.block)):
            with self.columns(part, dz) as (tile, v):
                total = self.name(f"tl.sum({tile}, axis=0)")
                place = f"{self.parameter(term, output=True)} + {part.first} + {v}"
                self._add_to(place, f"{v} < {part.mul}", total)

    def _add_to(self, place: str, mask: str, value: str):
        place = self.name(place)
        before = self.name(f"tl.load({place}, mask={mask}, other=0.0)")
        self.emit(f"tl.store({place}, {before} + {value}, mask={mask})")

    def _parameter_gradients(self, segments, parts, dz):
        """Write the product again, and its products with dz, a slice of the channels at a time."""
        for segment, components in self.product(segments).items():
            s = self.out.segments[segment]
            tile = self.stacked(components)
            with self.slices(self.channels):
                piece = self.piece(tile, self.rows * self.padded(s.dim))
                self.emit(f"u = (chunk * {self.channels} + at + tl.arange(0, {SLICE}))[:, None]")
                for part in parts:
                    for term in filter(self.wants, self.linear.into(part.block)):
                        with self.columns(part, dz) as (cotangent, v):
                            first, step = self.rows_of(segment, term)
                            v = f"{v}[None, :]"
                            place = self.matrix_place(term, part, f"{first} + u * {step}", v)
                            value = self.dot(f"tl.trans({piece})", cotangent, term.scale)
                            mask = f"(u < {s.mul}) & ({v} < {part.mul})"
                            place = f"{self.parameter(term, output=True)} + {place}"
                            self._add_to(place, mask, value)

    # through the Linear, to the product of a graph

    def _store_dproduct(self, source: int, parts, dz):
        """Store the cotangent of a block of the product; segments that it does not
        have are zero.
        """
        block = self.linear.blocks_in[source]
        padded = self.padded(block.dim)
        lane = f"tl.arange(0, {self.channels})"
        with self.block(f"for base in tl.range(0, {block.mul}, {self.channels}, num_stages=1):"):
            self.emit(f"u = base + {lane}[None, :]")
            tile = self.through_linear(parts, dz, block.dim, "u", f"(u < {block.mul})")
            tile = f"tl.reshape({tile}, ({self.rows}, {padded}, {self.channels}))"
            k, u = f"tl.arange(0, {padded})[None, :, None]", f"(base + {lane}[None, None, :])"
            place = f"row3 * {self.out.size} + {block.offset} + {u} * {block.dim} + {k}"
            mask = f"present3 & ({u} < {block.mul}) & ({k} < {block.dim})"
            self.emit(f"tl.store(dproduct_ptr + {place}, {tile}, mask={mask})")
