"""The backward of a fused op, from the pre-activation to the operands of the product,
in registers.
"""

import contextlib

from eqfuse.ops.algebra.form import Form
from eqfuse.ops.algebra.fused import Fused
from eqfuse.ops.algebra.gates import Part
from eqfuse.ops.algebra.schedule import ordered_groups
from eqfuse.ops.triton.codegen.arithmetic import ArithmeticWriter, component_name
from eqfuse.ops.triton.codegen.fused_lines import FusedWriter
from eqfuse.ops.triton.codegen.lines import SLICE


def backward_form(fused: Fused, wanted: tuple[bool, ...]) -> Form | None:
    """Return the form of the cotangents of the product's wanted inputs; its last input is dout."""
    active = wanted[: len(fused.form.inputs)]
    if not any(active):
        return None
    linear = (False,) * len(fused.form.inputs) + (True,) * sum(active)
    return fused.form.jvp(active).transpose(linear, (True,))


class OperandGradients(FusedWriter):
    """Writes what takes cotangents of the pre-activation through the Linear and through the
    product.
    """

    def __init__(self, fused: Fused, wanted, dtype: str):
        self.cotangents = backward_form(fused, wanted)
        self.in_registers = self.cotangents is not None and not fused.summed
        super().__init__(fused, dtype, least=SLICE, threads=2 if self.in_registers else 1)

    def through_linear(self, parts, dz, dim: int, u: str, has_u: str) -> str:
        """Return the cotangent of the rows `u` [1, CHANNELS] of a block, [ROWS * components,
        CHANNELS].
        """
        height = self.rows * self.padded(dim)
        total = self.name(self.zeros(height, self.channels))
        for part in parts:
            for term in self.linear.into(part.block):
                with self.slices(self.width(part) if dz else part.mul):
                    piece = self.piece(dz[part], height) if dz else self.cotangent_piece(part)
                    v = f"(at + tl.arange(0, {SLICE}))[:, None]"
                    place = self.matrix_place(term, part, u, v)
                    mask = f"{has_u} & ({v} < {part.mul})"
                    matrix = self.load(f"{self.parameter(term)} + {place}", mask)
                    self.emit(f"{total} += {self.dot(piece, matrix, term.scale)}")
        return total

    def parts(self) -> list[Part]:
        """Whole where they are read from memory, some columns at a time."""
        if self.fused.gate is not None:
            return super().parts()
        return [Part(n, 0, b.mul) for n, b in enumerate(self.linear.blocks_out)]

    @contextlib.contextmanager
    def columns(self, part: Part, dz):
        """Once, or in a loop: (a tile of a part of the pre-activation's cotangent, its columns)."""
        if dz:
            yield dz[part], f"tl.arange(0, {self.width(part)})"
            return
        width = min(self.width(part), self.most_columns(self.dim(part)))
        with self.block(f"for column in tl.range(0, {part.mul}, {width}, num_stages=1):"):
            yield (
                self.cotangent_piece(part, "column", width),
                f"(column + tl.arange(0, {width}))",
            )

    def cotangent_piece(self, part: Part, at: str = "at", width: int = SLICE) -> str:
        """Return columns of the pre-activation's cotangent, [ROWS * components, width], from
        memory.
        """
        height = self.rows * self.padded(self.dim(part))
        tile = self.load_tile(*self.place_of(part, "ct_"), part, at, width)
        return self.name(f"tl.reshape({tile}, ({height}, {width}))")

    def in_registers_of(self, sources, dz):
        """From dz to the cotangents of the product's operands, a segment at a time."""
        shared = self._shared()
        if self.chunks > 1:
            for total, _, _, _ in shared:
                self.emit(f"{total} = {self.zeros(self.rows, 1)}")
        for operand in self.cotangents.outputs:  # those of nodes are summed by another kernel
            self.emit(f"{operand.name}_row = {operand.name}_ptr + row * {operand.size}")
        assigned: set[str] = set()
        with self.channel_chunks():
            self.masks("present", [*self.cotangents.inputs, *self.cotangents.outputs])
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
        """Return (variable of its sum, its name, operand, place) of what is summed over
        channels.
        """
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
                    place, mask = self.place(operand, segment, k, "present")
                    value = name if name in assigned else self.zeros(self.rows, self.channels)
                    self.emit(f"tl.store({operand.name}_row + {place}, {value}, mask={mask})")

    def _name_components(self, segment: int, parts, dz):
        """Name the cotangents of the components of a segment: the variables that
        `Body` reads.
        """
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
        body = ArithmeticWriter(form, self.loader("present"), self.emit)
        last = len(form.inputs) - 1
        dout = form.inputs[last]
        body.loaded(component_name(dout, segment, k) for k in range(dout.segments[segment].dim))
        paths = [
            p
            for p in form.paths
            if any(s.operand == last and s.segment == segment for s in p.factors)
        ]
        for group in ordered_groups(Form(form.inputs, form.outputs, tuple(paths))):
            body.new_group()
            for path in group:
                self._accumulate(body, path, assigned)

    def _accumulate(self, body: ArithmeticWriter, path, assigned: set[str]):
        operand = self.cotangents.outputs[path.output.operand]

        def accumulate(component, expression):
            name = component_name(operand, path.output.segment, component)
            self.emit(f"{name} {'+=' if name in assigned else '='} {expression}")
            assigned.add(name)

        body.add_path(path, accumulate)
