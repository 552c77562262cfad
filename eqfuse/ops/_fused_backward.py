"""The backward of a fused op as one Triton kernel.

It recomputes the product, takes the cotangents through the gate and the Linear, and adds up the
gradient of the weights. Over rows of a batch it goes on to the gradients of the product's operands
in registers. On a graph those of the senders' features are sums over other edges than the program
owns; there it writes the cotangent of the summed product, per node, for the product's own backward
kernel. The weights' gradient is summed over rows in the order of the rows by a fixed number of
programs, each into an array of its own, which are then added: repeatable bit for bit.
"""

from eqfuse.ops._body import Body, component_name, ordered_groups
from eqfuse.ops._form import Form
from eqfuse.ops._fused import Fused
from eqfuse.ops._fused_kernel import LEAST_DOT, FusedKernel, Writer, power_of_two
from eqfuse.ops._mixing import Part


def backward_form(fused: Fused, wanted: tuple[bool, ...]) -> Form:
    """The form of the cotangents of the product's wanted inputs; its last input is dout."""
    active = wanted[: len(fused.form.inputs)]
    linear = (False,) * len(fused.form.inputs) + (True,) * sum(active)
    return fused.form.jvp(active).transpose(linear, (True,))


def backward(fused: Fused, wanted: tuple[bool, ...], dtype: str) -> FusedKernel:
    """The kernel of the backward.

    Outputs, where wanted: dproduct (on a graph), or the cotangents of the form's inputs; dweights,
    [programs, num_indexed or 1, num_weights]; dskip.
    """
    return _Backward(fused, wanted, dtype).kernel()


class _Backward(Writer):
    def __init__(self, fused: Fused, wanted, dtype: str):
        super().__init__(fused, dtype)
        n = len(fused.form.inputs)
        self.wants_operands = any(wanted[:n])
        self.wants_weights = wanted[n]
        self.wants_skip = fused.skip and wanted[n + 1]
        self.cotangents = backward_form(fused, wanted) if self.wants_operands else None
        self.in_registers = self.wants_operands and not self.on_graph
        self.tiles = fused.gate.tiles

    def kernel(self) -> FusedKernel:
        fused = self.fused
        integers = ["which"] if fused.num_indexed else []
        integers += self.product_inputs()[len(self.form.inputs) :]
        inputs = [o.name for o in self.form.inputs] + ["weights", "mixed", "ct_out", "ct_mixed"]
        outputs = []
        if self.in_registers:
            outputs += [o.name for o in self.cotangents.outputs]
        elif self.wants_operands:
            outputs.append("dproduct")
        outputs += ["dweights"] * self.wants_weights + ["dskip"] * self.wants_skip

        self._own_weights()
        self.emit("number = tl.program_id(0)")
        self.emit(f"blocks = (num_rows + {self.rows - 1}) // {self.rows}")
        with self.block("while number < blocks:"):
            self.row_prologue("number")
            self._rows()
            self.emit("tl.debug_barrier()")  # sums in memory: the next step reads what this wrote
            self.emit("number += num_programs")
        scalars = ("num_rows", "num_programs")
        spec = self.spec("fused_backward", inputs + integers, integers, scalars, outputs)
        return FusedKernel(spec, (*inputs, *integers), tuple(outputs), self.rows)

    def _own_weights(self):
        """The program's own array for the weights' gradient, zero at first."""
        if not self.wants_weights:
            return
        size = self.mixing.num_weights * max(self.fused.num_indexed, 1)
        self.emit(f"own = dweights_ptr + tl.program_id(0).to(tl.int64) * {size}")
        self.emit("at = tl.program_id(0) * 0")
        with self.block(f"while at < {size}:"):
            lane = "at + tl.arange(0, 1024)"
            self.emit(
                f"tl.store(own + {lane}, tl.zeros([1024], {self.real}), mask={lane} < {size})"
            )
            self.emit("at += 1024")
        self.emit("tl.debug_barrier()")

    def _rows(self):
        dz: dict[Part, str] = {}
        for part in self.parts():
            dz[part] = self._cotangent(part)
            if self.wants_skip:
                dim = self.mixing.blocks_out[part.block].dim
                place = (self.mixing.size_out, self.offset(part), part, dim)
                self.store_tile("dskip", *place, dz[part])
        if self.wants_weights:
            self._bias_gradients(dz)
        if self.in_registers:
            for n, operand in enumerate(self.cotangents.outputs):
                if not operand.channels:
                    for s, segment in enumerate(operand.segments):
                        for k in range(segment.dim) if self._reached(n, s) else ():
                            name = component_name(operand, s, k)
                            self.emit(f"{name} = tl.zeros([{self.rows}, 1], {self.real})")
        with self.channel_chunks():
            self._channels(dz)
        if self.in_registers:
            self.emit("lane = tl.arange(0, 1)[None, :]")
            self._store_operands(shared=True)

    def _channels(self, dz):
        body = None
        if self.in_registers:
            self.masks("present", [*self.cotangents.inputs, *self.cotangents.outputs])
            for operand in (*self.cotangents.inputs[:-1], *self.cotangents.outputs):
                self.emit(f"{operand.name}_row = {operand.name}_ptr + row * {operand.size}")
        begun: set[str] = set()
        for source, parts in self.parts_by_input():
            if source is None:
                continue
            segments = self.segments[source]
            if self.wants_weights:
                self._weight_gradients(segments, parts, dz)
            if not self.wants_operands:
                continue
            for segment in segments:
                tile = self._through_linear(segment, parts, dz)
                if self.on_graph:
                    self._store_dproduct(segment, tile)
                else:
                    self._name_components(segment, tile)
            if self.in_registers:
                body = body or Body(self.cotangents, self.loader("present"), self.emit)
                self._statements_of(body, segments, begun)
        if self.on_graph and self.wants_operands:
            self._store_unmixed()
        if self.in_registers:
            self._store_operands(shared=False, begun=begun)

    def _cotangent(self, part: Part) -> str:
        """The cotangent of a part of the mixed row, [ROWS, components, columns]."""
        mixing, gate = self.mixing, self.fused.gate
        dim = mixing.blocks_out[part.block].dim
        value = self.load_tile("ct_mixed", mixing.size_out, self.offset(part), part, dim)
        for tile in self.tiles:
            size = gate.irreps_out.dim
            if tile.part == part:
                ct = self.load_tile("ct_out", size, tile.offset, part, dim)
                if tile.gate is None:
                    z = self.load_tile("mixed", mixing.size_out, self.offset(part), part, dim)
                    value = self.name(f"{value} + {ct} * {self.activated(tile.act, z, True)}")
                else:
                    value = self.name(f"{value} + {ct} * {self._gate(tile)}")
            if tile.gate == part:
                wide = mixing.blocks_out[tile.part.block].dim
                ct = self.load_tile("ct_out", size, tile.offset, tile.part, wide)
                z = self.load_tile(
                    "mixed", mixing.size_out, self.offset(tile.part), tile.part, wide
                )
                total = self.name(f"tl.sum({ct} * {z}, axis=1, keep_dims=True)")
                k = f"tl.arange(0, {self.padded(1)})[None, :, None]"
                slope = self._gate(tile, derivative=True)
                value = self.name(f"{value} + tl.where({k} < 1, {total} * {slope}, 0.0)")
        return value

    def _gate(self, tile, derivative: bool = False) -> str:
        mixing = self.mixing
        z = self.load_tile("mixed", mixing.size_out, self.offset(tile.gate), tile.gate, 1)
        first = self.name(f"tl.sum({z}, axis=1, keep_dims=True)")
        return self.activated(tile.act, first, derivative)

    def _flat(self, part: Part, dz) -> str:
        """dz as [ROWS * components, columns]."""
        padded = self.padded(self.mixing.blocks_out[part.block].dim)
        width = max(power_of_two(part.mul), LEAST_DOT)
        return self.name(f"tl.reshape({dz[part]}, ({self.rows * padded}, {width}))")

    def _own_row(self) -> str:
        return f"own + which * {self.mixing.num_weights}" if self.fused.num_indexed else "own"

    def _bias_gradients(self, dz):
        for part in self.parts():
            for start, _, block in self.mixing.biases:
                if block == part.block:
                    width = max(power_of_two(part.mul), LEAST_DOT)
                    total = self.name(f"tl.sum(tl.sum({dz[part]}, axis=1), axis=0)")
                    v = f"tl.arange(0, {width})"
                    place = f"{self._own_row()} + {start + part.first} + {v}"
                    self._add_to(place, f"{v} < {part.mul}", total)

    def _add_to(self, place: str, mask: str, value: str):
        place = self.name(place)
        before = self.name(f"tl.load({place}, mask={mask}, other=0.0)")
        self.emit(f"tl.store({place}, {before} + {value}, mask={mask})")

    def _weight_gradients(self, segments, parts, dz):
        names = self.product(segments)
        for segment, components in names.items():
            stacked = self.stacked(components, self.padded(len(components)))
            for part in parts:
                for matrix in self.into(part):
                    place, mask = self.matrix_place(matrix, segment, part, transposed=False)
                    value = self.dot(f"tl.trans({stacked})", self._flat(part, dz))
                    scale = "" if matrix.scale == 1.0 else f"{matrix.scale!r} * "
                    self._add_to(f"{self._own_row()} + {place}", mask, f"{scale}{value}")

    def _through_linear(self, segment: int, parts, dz) -> str:
        """The cotangent of a segment of the product, [ROWS * components, CHANNELS]."""
        dots = [
            self.dot(self._flat(part, dz), self.matrix(matrix, segment, part, transposed=True))
            for part in parts
            for matrix in self.into(part)
        ]
        return self.name(" + ".join(dots))

    def _store_dproduct(self, segment: int, tile: str):
        s = self.out.segments[segment]
        padded = self.padded(s.dim)
        tile = f"tl.reshape({tile}, ({self.rows}, {padded}, {self.channels}))"
        k, lane = f"tl.arange(0, {padded})[None, :, None]", "lane[:, None, :]"
        place = f"row3 * {self.out.size} + {s.offset} + {lane} * {s.channel_stride} + {k}"
        mask = f"present3 & ({lane} < {s.mul}) & ({k} < {s.dim})"
        self.emit(f"tl.store(dproduct_ptr + {place}, {tile}, mask={mask})")

    def _store_unmixed(self):
        """Zeros for the segments of the product that no matrix reads."""
        mixed = {
            n
            for source, _ in self.parts_by_input()
            if source is not None
            for n in self.segments[source]
        }
        for n, s in enumerate(self.out.segments):
            if n not in mixed:
                for k in range(s.dim):
                    place = f"row * {self.out.size} + {s.offset + k} + lane * {s.channel_stride}"
                    zero = f"tl.zeros([{self.rows}, {self.channels}], {self.real})"
                    mask = f"present & (lane < {s.mul})"
                    self.emit(f"tl.store(dproduct_ptr + {place}, {zero}, mask={mask})")

    def _name_components(self, segment: int, tile: str):
        dim = self.out.segments[segment].dim
        dout = self.cotangents.inputs[-1]
        for k, name in enumerate(self.unstacked(tile, self.padded(dim), dim)):
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
                total = self.name(
                    f"{expression} + tl.zeros([{self.rows}, {self.channels}], {self.real})"
                )
                self.emit(f"{name} += tl.sum({total}, axis=1, keep_dims=True)")
            elif name in begun:
                self.emit(f"{name} += {expression}")
            else:
                self.emit(f"{name} = {expression}")
                begun.add(name)

        body.add_path(path, accumulate)

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
                    width = 1 if shared else self.channels
                    value = name if known else f"tl.zeros([{self.rows}, {width}], {self.real})"
                    self.emit(f"tl.store({operand.name}_row + {place}, {value}, mask={mask})")
