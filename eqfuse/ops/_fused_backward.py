"""The backward of a fused op as one Triton kernel.

It takes the cotangents through the gate and the Linear, recomputes the product, and adds up the
gradients of the parameters; each program walks some of the rows in order and keeps sums of its own,
which `_mixing_kernel.reduction` adds: repeatable bit for bit.

Over rows of a batch it goes on to the gradients of the product's operands in registers. On a graph
those of the senders' features are sums over other edges than the program owns; there it writes the
cotangent of the summed product, per node, for the product's own backward kernel, and the blocks of
the product are divided among `groups` of programs.
"""

from eqfuse.ops._body import Body, component_name, ordered_groups
from eqfuse.ops._form import Form
from eqfuse.ops._fused import Fused
from eqfuse.ops._fused_kernel import FusedKernel, activated, gate_value
from eqfuse.ops._fused_text import FusedText
from eqfuse.ops._gate import Part
from eqfuse.ops._mixing import Term
from eqfuse.ops._text import SLICE

CLEARED = 1024


def backward_form(fused: Fused, wanted: tuple[bool, ...]) -> Form | None:
    """The form of the cotangents of the product's wanted inputs; its last input is dout."""
    active = wanted[: len(fused.form.inputs)]
    if not any(active):
        return None
    linear = (False,) * len(fused.form.inputs) + (True,) * sum(active)
    return fused.form.jvp(active).transpose(linear, (True,))


def backward(fused: Fused, wanted: tuple[bool, ...], dtype: str) -> FusedKernel:
    """The kernel of the backward.

    Outputs, where wanted: dproduct (on a graph), or the cotangents of the form's inputs; own0,
    own1, ..., the sums of the parameters' gradients, [programs, ...]; dskip.
    """
    return _Backward(fused, wanted, dtype).kernel()


class _Backward(FusedText):
    def __init__(self, fused: Fused, wanted, dtype: str):
        super().__init__(fused, dtype, least=SLICE)
        operands, parameters, skip = fused.operands(wanted)
        self.cotangents = backward_form(fused, wanted)
        self.wants_operands = any(operands)
        self.wanted = [n for n, want in enumerate(parameters) if want]
        self.wants_skip = bool(skip)
        self.in_registers = self.wants_operands and not self.on_graph

    def wants(self, term: Term) -> bool:
        """Whether the gradient of this parameter is wanted."""
        return term.w - 1 in self.wanted

    def kernel(self) -> FusedKernel:
        """The whole text."""
        outputs = {}
        if self.in_registers:
            outputs = {o.name: self.dtype for o in self.cotangents.outputs}
        elif self.wants_operands:
            outputs = {"dproduct": self.dtype}
        outputs |= {f"d{n}": self.wide for n in self.wanted}
        outputs |= {"dskip": self.dtype} if self.wants_skip else {}
        groups = [[g] for g in self.parts_by_input()] if self.on_graph else [self.parts_by_input()]

        self.emit("program = tl.program_id(0) % num_programs")
        self.emit(f"blocks = (num_rows + {self.rows - 1}) // {self.rows}")
        for number, group in enumerate(groups):
            with self.block(f"if tl.program_id(0) // num_programs == {number}:"):
                self._group(group)
        inputs = self.inputs(*(["z"] if self.fused.gate else []), "ct_z")
        inputs = inputs if self.fused.gate is None else [*inputs, "ct_out"]
        scalars = ("num_rows", "num_programs")
        note = f"backward of\n{self.form!r}\nmixed to {self.linear.irreps_out}"
        spec = self.spec("fused_backward", note, inputs, self.integers(), scalars, outputs)
        return FusedKernel(spec, tuple(inputs), tuple(outputs), self.rows, len(groups))

    def _group(self, group):
        """Everything about some of the product's blocks and what is mixed from them."""
        blocks = {part.block for _, parts in group for part in parts}
        self._clear([t for t in self.linear.mixing.terms if t.z.block in blocks and self.wants(t)])
        self.emit("number = program")
        with self.block("while number < blocks:"):
            self.row_prologue("number")
            self._rows(group)
            self.emit("tl.debug_barrier()")  # sums in memory: the next step reads what this wrote
            self.emit("number += num_programs")

    def _clear(self, terms: list[Term]):
        """The program's own sums of the parameters' gradients, zero at first."""
        for n in sorted({term.w - 1 for term in terms}):
            size = self.parameter_size(n) * max(self.fused.num_sets, 1)
            self.emit(f"own{n} = d{n}_ptr + program.to(tl.int64) * {size}")
            with self.block(f"for at in tl.range(0, {size}, {CLEARED}, num_stages=1):"):
                self.emit(f"place = at + tl.arange(0, {CLEARED})")
                self.emit(f"tl.store(own{n} + place, {self.zeros(CLEARED)}, mask=place < {size})")
        if terms:
            self.emit("tl.debug_barrier()")

    def _rows(self, group):
        dz: dict[Part, str] = {}
        for part in (part for _, parts in group for part in parts):
            cotangent = self._cotangent(part)
            if self.wants_skip:
                self.store_tile("dskip", self.linear.size_out, self.offset(part), part, cotangent)
            self._bias_gradients(part, cotangent)
            dz[part] = self.flat(part, cotangent)
        if self.in_registers:
            self._begin_shared()
        if self.on_graph and self.wants_operands:
            for source, parts in group:
                if source is not None:
                    self._store_dproduct(source, parts, dz)
        with self.channel_chunks():
            self._channels(group, dz)
        if self.in_registers:
            self.emit("lane = tl.arange(0, 1)[None, :]")
            self._store_operands(shared=True)

    def _channels(self, group, dz):
        body, begun = None, set()
        if self.in_registers:
            self.masks("present", [*self.cotangents.inputs, *self.cotangents.outputs])
            for operand in (*self.cotangents.inputs[:-1], *self.cotangents.outputs):
                self.emit(f"{operand.name}_row = {operand.name}_ptr + row * {operand.size}")
            body = Body(self.cotangents, self.loader("present"), self.emit)
        for source, parts in group:
            if source is None:
                continue
            segments = self.segments[source]
            if any(self.wants(term) for part in parts for term in self.linear.into(part.block)):
                self._parameter_gradients(segments, parts, dz)
            if self.in_registers:
                for segment in segments:
                    self._name_components(segment, parts, dz)
                self._statements_of(body, segments, begun)
        if self.in_registers:
            self._store_operands(shared=False, begun=begun)

    # through the gate

    def _cotangent(self, part: Part) -> str:
        """The cotangent of a part of the mixed row, [ROWS, components, columns]."""
        size = self.linear.size_out
        value = self.load_tile("ct_z", size, self.offset(part), part)
        for tile in self.fused.gate.tiles if self.fused.gate else ():
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

    def _bias_gradients(self, part: Part, cotangent: str):
        for term in filter(self.wants, self.linear.biases(part.block)):
            v = f"tl.arange(0, {self.width(part)})"
            total = self.name(f"tl.sum(tl.sum({cotangent}, axis=1), axis=0)")
            place = f"{self.parameter(term, output=True)} + {part.first} + {v}"
            self._add_to(place, f"{v} < {part.mul}", total)

    def _add_to(self, place: str, mask: str, value: str):
        place = self.name(place)
        before = self.name(f"tl.load({place}, mask={mask}, other=0.0)")
        self.emit(f"tl.store({place}, {before} + {value}, mask={mask})")

    def _parameter_gradients(self, segments, parts, dz):
        """The product again, and its products with dz, a slice of the channels at a time."""
        for segment, components in self.product(segments).items():
            s = self.out.segments[segment]
            tile = self.stacked(components)
            with self.slices(self.channels):
                piece = self.piece(tile, self.rows * self.padded(s.dim))
                self.emit(f"u = (chunk * {self.channels} + at + tl.arange(0, {SLICE}))[:, None]")
                for part in parts:
                    for term in filter(self.wants, self.linear.into(part.block)):
                        first, step = self.rows_of(segment, term)
                        v = f"tl.arange(0, {self.width(part)})[None, :]"
                        place = self.matrix_place(term, part, f"{first} + u * {step}", v)
                        value = self.dot(f"tl.trans({piece})", dz[part], term.scale)
                        mask = f"(u < {s.mul}) & ({v} < {part.mul})"
                        self._add_to(f"{self.parameter(term, output=True)} + {place}", mask, value)

    # through the Linear

    def _through_linear(self, parts, dz, dim: int, u: str, has_u: str) -> str:
        """The cotangent of the rows `u` [1, CHANNELS] of a block, [ROWS * components, CHANNELS]."""
        height = self.rows * self.padded(dim)
        total = self.name(self.zeros(height, self.channels))
        for part in parts:
            for term in self.linear.into(part.block):
                with self.slices(self.width(part)):
                    piece = self.piece(dz[part], height)
                    v = f"(at + tl.arange(0, {SLICE}))[:, None]"
                    place = self.matrix_place(term, part, u, v)
                    mask = f"{has_u} & ({v} < {part.mul})"
                    matrix = self.load(f"{self.parameter(term)} + {place}", mask)
                    self.emit(f"{total} += {self.dot(piece, matrix, term.scale)}")
        return total

    def _store_dproduct(self, source: int, parts, dz):
        """The cotangent of a block of the product; segments that it does not have are zero."""
        block = self.linear.blocks_in[source]
        padded = self.padded(block.dim)
        lane = f"tl.arange(0, {self.channels})"
        with self.block(f"for base in tl.range(0, {block.mul}, {self.channels}, num_stages=1):"):
            self.emit(f"u = base + {lane}[None, :]")
            tile = self._through_linear(parts, dz, block.dim, "u", f"(u < {block.mul})")
            tile = f"tl.reshape({tile}, ({self.rows}, {padded}, {self.channels}))"
            k, u = f"tl.arange(0, {padded})[None, :, None]", f"(base + {lane}[None, None, :])"
            place = f"row3 * {self.out.size} + {block.offset} + {u} * {block.dim} + {k}"
            mask = f"present3 & ({u} < {block.mul}) & ({k} < {block.dim})"
            self.emit(f"tl.store(dproduct_ptr + {place}, {tile}, mask={mask})")

    # the gradients of the product's operands, over rows

    def _name_components(self, segment: int, parts, dz):
        """The cotangents of the components of a segment, as the variables that `Body` reads."""
        s = self.out.segments[segment]
        [term, *_] = self.linear.into(parts[0].block)
        first, step = self.rows_of(segment, term)
        u = f"{first} + lane * {step}"
        tile = self._through_linear(parts, dz, s.dim, u, f"(lane < {s.mul})")
        dout = self.cotangents.inputs[-1]
        for k, name in enumerate(self.unstacked(tile, s.dim)):
            self.emit(f"{component_name(dout, segment, k)} = {name}")

    def _statements_of(self, body: Body, segments, begun: set[str]):
        """The part of the product's backward that reads the cotangents of these segments."""
        form = self.cotangents
        last = len(form.inputs) - 1
        dout = form.inputs[last]
        body.loaded(
            component_name(dout, n, k) for n in segments for k in range(dout.segments[n].dim)
        )
        paths = [
            p
            for p in form.paths
            if any(s.operand == last and s.segment in segments for s in p.factors)
        ]
        for group in ordered_groups(Form(form.inputs, form.outputs, tuple(paths))):
            body.new_group()
            for path in group:
                self._accumulate(body, path, begun)

    def _accumulate(self, body: Body, path, begun: set[str]):
        operand = self.cotangents.outputs[path.output.operand]

        def accumulate(component, expression):
            name = component_name(operand, path.output.segment, component)
            if not operand.channels:
                total = self.name(f"{expression} + {self.zeros(self.rows, self.channels)}")
                self.emit(f"{name} += tl.sum({total}, axis=1, keep_dims=True)")
            elif name in begun:
                self.emit(f"{name} += {expression}")
            else:
                self.emit(f"{name} = {expression}")
                begun.add(name)

        body.add_path(path, accumulate)

    def _begin_shared(self):
        """Zeros for what is summed over channels."""
        for n, operand in enumerate(self.cotangents.outputs):
            if not operand.channels:
                for s, segment in enumerate(operand.segments):
                    for k in range(segment.dim) if self._reached(n, s) else ():
                        self.emit(f"{component_name(operand, s, k)} = {self.zeros(self.rows, 1)}")

    def _reached(self, output: int, segment: int) -> bool:
        return any(
            (p.output.operand, p.output.segment) == (output, segment) for p in self.cotangents.paths
        )

    def _store_operands(self, shared: bool, begun: set[str] = frozenset()):
        for n, operand in enumerate(self.cotangents.outputs):
            if operand.channels == shared:
                continue
            for s, segment in enumerate(operand.segments):
                for k in range(segment.dim):
                    name = component_name(operand, s, k)
                    place, mask = self.place(operand, segment, k, "present")
                    known = self._reached(n, s) if shared else name in begun
                    value = name if known else self.zeros(self.rows, 1 if shared else self.channels)
                    self.emit(f"tl.store({operand.name}_row + {place}, {value}, mask={mask})")
