"""The backward of a fused op over rows as one Triton kernel.

It takes the cotangents through the gate and the Linear, and goes on to those of the product's
operands in registers: the cotangent of the product is never written to memory. The gradients of the
parameters are not its business: they are sums over all rows, for which a kernel of the Linear reads
the product and the cotangent of the pre-activation, which this kernel writes if it is asked to.
"""

from eqfuse.ops.backends.triton.emit.arithmetic import ArithmeticEmitter
from eqfuse.ops.backends.triton.emit.elementwise import activated
from eqfuse.ops.backends.triton.emit.emitter import SLICE, component_name
from eqfuse.ops.backends.triton.emit.fused_emitter import FusedEmitter
from eqfuse.ops.backends.triton.emit.fused_forward import FusedKernel, gate_value
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.fused import Fused, backward_form
from eqfuse.ops.ir.gates import Part
from eqfuse.ops.ir.schedule import ordered_groups


def backward(fused: Fused, wanted, given, dtype: str, writes_dz: bool = False) -> FusedKernel:
    """Return the kernel of the backward, of some of the product's inputs.

    Args:
      wanted: of which inputs, one at least.
      given: which cotangents of the outputs there are.
      writes_dz: write the cotangent of the pre-activation too, which has one array then.
    """
    return _Backward(fused, wanted, given, dtype, writes_dz).kernel()


class _Backward(FusedEmitter):
    def __init__(self, fused: Fused, wanted, given, dtype: str, writes_dz: bool):
        super().__init__(fused, dtype, least=SLICE, threads=2)
        self.cotangents = backward_form(fused.form, wanted)
        self.given = fused.cotangents(given)
        self.writes_dz = writes_dz
        if fused.gate is None and not self._shared():
            # not a loop: compilers move the addresses of all matmuls out of it, and spill them
            self.shares = self.chunks

    def kernel(self) -> FusedKernel:
        """Return the whole text."""
        self.row_prologue()
        dz = self._cotangents()
        for part, cotangent in dz.items() if self.writes_dz else ():
            shape = (self.rows, self.padded(self.dim(part)), self.width(part))
            cotangent = f"tl.reshape({cotangent}, {shape})"
            self.store_tile("dz", self.linear.size_out, self.offset(part), part, cotangent)
        sources = self.parts_by_input()
        self._operands_of([(s, parts) for s, parts in sources if s is not None], dz)
        names = [o.name for o in self.cotangents.outputs] + ["dz"] * self.writes_dz
        inputs = self.inputs(*(["z"] if "ct_out" in self.given else []), *self.given)
        note = f"backward of\n{self.form!r}\nmixed to {self.linear.irreps_out}"
        outputs = dict.fromkeys(names, self.dtype)
        spec = self.spec("fused_backward", note, inputs, self.integers(), ("num_rows",), outputs)
        return FusedKernel(spec, tuple(inputs), tuple(outputs), self.rows, self.shares)

    def parts(self) -> list[Part]:
        """Return parts that are whole where they are read from memory, some columns at a time."""
        if self.fused.gate is not None:
            return super().parts()
        return [Part(n, 0, b.mul) for n, b in enumerate(self.linear.blocks_out)]

    # through the gate

    def _cotangents(self) -> dict[Part, str]:
        """Return the cotangents of the pre-activation, flat; none where they are in memory."""
        if self.fused.gate is None:
            return {}
        return {part: self.flat(part, self._cotangent(part)) for part in self.parts()}

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

    # through the Linear

    def through_linear(self, parts, dz, dim: int, u: str, has_u: str) -> str:
        """Return the cotangent of rows `u` [1, CHANNELS] of a block.

        Its shape is [ROWS * components, CHANNELS].
        """
        height = self.rows * self.padded(dim)
        total = self.name(self.zeros(height, self.channels))
        for part in parts:
            for term in self.linear.into(part.block):
                with self.slices(self.width(part) if dz else part.mul):
                    piece = self.piece(dz[part], height) if dz else self._cotangent_piece(part)
                    v = f"(at + tl.arange(0, {SLICE}))[:, None]"
                    place = self.matrix_place(term, part, u, v)
                    mask = f"{has_u} & ({v} < {part.mul})"
                    matrix = self.load(f"{self.parameter(term)} + {place}", mask)
                    self.emit(f"{total} += {self.dot(piece, matrix, term.scale)}")
        return total

    def _cotangent_piece(self, part: Part) -> str:
        """Return SLICE columns of the pre-activation's cotangent from memory.

        Their shape is [ROWS * components, SLICE].
        """
        height = self.rows * self.padded(self.dim(part))
        tile = self.load_tile(*self.place_of(part, "ct_"), part, "at", SLICE)
        return self.name(f"tl.reshape({tile}, ({height}, {SLICE}))")

    # through the product

    def _operands_of(self, sources, dz):
        """Write the cotangents of the product's operands, from dz, a segment at a time."""
        shared = self._shared()
        if self.chunks > 1:
            for total, _, _, _ in shared:
                self.emit(f"{total} = {self.zeros(self.rows, 1)}")
        for operand in self.cotangents.outputs:  # those of nodes are summed by another kernel
            self.emit(f"{operand.name}_row = {operand.name}_ptr + row * {operand.size}")
        assigned: set[str] = set()
        with self.channel_chunks():
            self.masks([*self.cotangents.inputs, *self.cotangents.outputs])
            self.row_pointers(self.cotangents.inputs[:-1])
            for source, parts in sources:
                for segment in self.segments[source]:
                    self._name_components(segment, parts, dz)
                    self._statements_of(segment, assigned)
            self._store(assigned)
            for total, name, _, _ in shared:
                if name in assigned:
                    add = "+=" if self.chunks > 1 else "="
                    self.emit(f"{total} {add} tl.sum({name}, axis=1, keep_dims=True)")
        for total, name, operand, place in shared:
            value = total if name in assigned else self.zeros(self.rows, 1)
            self.emit(f"tl.store({operand.name}_row + {place}, {value}, mask=present)")

    def _shared(self):
        """Return (variable of the sum, name, operand, place) of what is summed over channels."""
        return [
            (f"sum_{component_name(operand, s, k)}", component_name(operand, s, k), operand, place)
            for operand in self.cotangents.outputs
            if not operand.channels
            for s, segment in enumerate(operand.segments)
            for k in range(segment.dim)
            for place in [segment.offset + k * segment.component_stride]
        ]

    def _store(self, assigned: set[str]):
        """Write the cotangents that have channels; zero where no path leads to them."""
        for operand in (o for o in self.cotangents.outputs if o.channels):
            for s, segment in enumerate(operand.segments):
                for k in range(segment.dim):
                    name = component_name(operand, s, k)
                    place, mask = self.place(operand, segment, k)
                    value = name if name in assigned else self.zeros(self.rows, self.channels)
                    self.emit(f"tl.store({operand.name}_row + {place}, {value}, mask={mask})")

    def _name_components(self, segment: int, parts, dz):
        """Assign the variables of the cotangents of a segment, which `ArithmeticEmitter` reads."""
        s = self.out.segments[segment]
        [term, *_] = self.linear.into(parts[0].block)
        first, step = self.rows_of(segment, term)
        u = f"{first} + lane * {step}"
        tile = self.through_linear(parts, dz, s.dim, u, f"(lane < {s.mul})")
        dout = self.cotangents.inputs[-1]
        for k, name in enumerate(self.unstacked(tile, s.dim)):
            self.emit(f"{component_name(dout, segment, k)} = {name}")

    def _statements_of(self, segment: int, assigned: set[str]):
        """Write the part of the product's backward that reads the cotangent of this segment."""
        form = self.cotangents
        arithmetic = ArithmeticEmitter(form, self.load_component, self.emit)
        last = len(form.inputs) - 1
        dout = form.inputs[last]
        arithmetic.loaded(
            component_name(dout, segment, k) for k in range(dout.segments[segment].dim)
        )
        paths = [
            p
            for p in form.paths
            if any(s.operand == last and s.segment == segment for s in p.factors)
        ]
        groups = ordered_groups(Form(form.inputs, form.outputs, tuple(paths)))
        arithmetic.add_groups(groups, lambda path: self._accumulator(path, assigned))

    def _accumulator(self, path, assigned: set[str]):
        operand = self.cotangents.outputs[path.output.operand]

        def accumulate(component, expression):
            name = component_name(operand, path.output.segment, component)
            self.emit(f"{name} {'+=' if name in assigned else '='} {expression}")
            assigned.add(name)

        return accumulate
