"""The backward of a fused op over rows as one Triton kernel.

If there is a gate, it takes the cotangents through it, and writes those of the pre-activation.
From there each segment of the product goes through the Linear and on to the product's operands in
registers: the cotangent of the product is never in memory. The gradients of the parameters, which
are sums over all rows, are another kernel's (`fused_gradients`).
"""

import contextlib
import dataclasses

from eqfuse.ops.backends.triton.emit.emitter import component_name
from eqfuse.ops.backends.triton.emit.fused_emitter import FusedEmitter, FusedKernel, width_for
from eqfuse.ops.backends.triton.emit.gate_tiles import write_cotangent
from eqfuse.ops.ir.fused import Fused, backward_form
from eqfuse.ops.ir.operands import Index

SLICE = 16
"""Terms of a matmul. With 32 a program waits less often, but allegro-64-l2 spills 992 bytes."""
COMPONENTS = 28
"""Components of the operands' cotangents that a program sums, at most; in float64 half as many."""


def backward(fused: Fused, wanted, given, dtype: str) -> FusedKernel:
    """Return the kernel of the backward; with a cotangent of the gated row, it writes dz last.

    Args:
      wanted: the cotangents of which of the product's inputs it writes.
      given: which cotangents of the outputs there are.
    """
    return _Backward(fused, wanted, given, dtype).kernel_of_all()


class _Backward(FusedEmitter):
    def __init__(self, fused: Fused, wanted, given, dtype: str):
        width = width_for(fused.form.max_mul)
        super().__init__(fused, dtype, width, width)
        self.cotangents = backward_form(fused.form, wanted) if any(wanted) else None
        self.given = fused.cotangents(given)
        self.gated = "ct_out" in self.given

    def kernel_of_all(self) -> FusedKernel:
        """Return the whole text."""
        form = self.cotangents
        groups = self._groups() if form else []
        # what is summed over channels, and what the gate makes, is whole in a program
        across = self.gated or any(not o.channels for o in form.outputs)
        chunks = 1 if across else self.chunks
        shares = max(1, len(groups)) * chunks
        self.begin(shares)
        if self.gated:
            for tile in self.fused.gate.tiles:
                write_cotangent(self, tile, "ct_z" in self.given)
            self.emit("tl.debug_barrier()")
        if form:
            self.row_pointers(form.inputs[:-1])
            # those of nodes are summed by another kernel
            self.row_pointers(dataclasses.replace(o, index=Index.ROW) for o in form.outputs)
        for n, group in enumerate(groups):
            alone = len(groups) == 1
            owned = self.block(f"if share // {chunks} == {n}:")
            with contextlib.nullcontext() if alone else owned:
                self._write(group, self._one_chunk() if chunks > 1 else self.all_channels())
        names = [o.name for o in form.outputs] if form else []
        outputs = dict.fromkeys([*names, *["dz"] * self.gated], self.dtype)
        inputs = self.inputs(*(["z"] if self.gated else []), *self.given)
        return self.kernel("fused_backward", "backward of", inputs, outputs, shares)

    @contextlib.contextmanager
    def _one_chunk(self):
        """Write the chunk of channels of this program."""
        self.emit(f"chunk = share % {self.chunks}")
        yield

    def _groups(self) -> list[list[tuple[int, int]]]:
        """Return the segments (operand, segment) of the cotangents that each program writes."""
        most = COMPONENTS // (2 if self.dtype == "float64" else 1)
        groups, components = [], 0
        for o, operand in enumerate(self.cotangents.outputs):
            for s, segment in enumerate(operand.segments):
                if not groups or components + segment.dim > most:
                    groups.append([])
                    components = 0
                components += segment.dim
                groups[-1].append((o, s))
        return groups

    def _write(self, group, chunks):
        """Write some segments of the operands' cotangents."""
        outputs = self.cotangents.outputs
        with_channels = [(o, s) for o, s in group if outputs[o].channels]
        shared = [(o, s) for o, s in group if not outputs[o].channels]
        self._clear(shared)
        with chunks:
            self.lanes([*self.cotangents.inputs, *outputs])
            self._clear(with_channels)
            for segment in self.segments():
                self._add_segment(segment, group)
            for o, s in with_channels:
                self._store(o, s)
        for o, s in shared:
            for name in self.names_of(outputs[o], s):
                self.emit(f"{name} = tl.sum({name}, axis=1, keep_dims=True)")
            self._store(o, s)

    def _clear(self, segments):
        for o, s in segments:
            for name in self.names_of(self.cotangents.outputs[o], s):
                self.emit(f"{name} = {self.zeros(self.rows, self.channels)}")

    def _store(self, o: int, s: int):
        operand = self.cotangents.outputs[o]
        segment = operand.segments[s]
        for k in range(segment.dim):
            address, mask = self.place(operand, segment, k)
            mask = f"present & {mask}" if mask else "present"
            self.emit(f"tl.store({address}, {component_name(operand, s, k)}, mask={mask})")

    def _add_segment(self, segment: int, group):
        """Add what comes through a segment of the product."""
        form = self.cotangents
        last = len(form.inputs) - 1
        paths = [
            p
            for p in form.paths
            if (p.output.operand, p.output.segment) in group
            and any(f.operand == last and f.segment == segment for f in p.factors)
        ]
        if paths:
            with self.apart(segment):
                names = self._through_linear(segment)
                self.arithmetic(form, paths, names)

    def _through_linear(self, segment: int) -> list[str]:
        """Return the cotangents of the components of a segment of the product."""
        names, s = self.names_of(self.cotangents.inputs[-1], segment), self.out.segments[segment]
        linear, started = self.linear, False
        self.emit("u = tl.trans(lane)")
        for term in self.terms_of(segment):
            number = linear.block_of(term)
            block, array = linear.blocks_out[number], linear.array_of(number)
            size = linear.linear_form.outputs[array].size
            pointer = "dz" if self.gated else f"ct_{self.fused.arrays[array]}"
            first, step = self.rows_of(segment, term)
            totals = [self.name(self.zeros(self.rows, self.channels)) for _ in names]
            with self.block(f"for at in tl.range(0, {block.mul}, {SLICE}, num_stages=1):"):
                self.emit(f"v = (at + tl.arange(0, {SLICE}))[None, :]")
                place = f"inside * {size} + {block.offset} + v * {block.dim}"
                start = f"{pointer}_ptr + first.to(tl.int64) * {size}"  # 32 bits from here on
                has_v = f"v < {block.mul}" if block.mul % SLICE else ""
                lefts = [
                    self.name(self.loaded_where(f"{start} + ({place} + {k})", has_v))
                    for k in range(s.dim)
                ]
                with self.sets():
                    place = f"({first} + u * {step}) * {block.mul} + v"
                    place = f"{self.parameter(term, 'which')} + ({place})"
                    has_u = "" if self.fills(s.mul) else f"u < {s.mul}"
                    # neighbours of a row of the matrix are loaded at once, and turned
                    matrix = self.name(f"tl.trans({self.loaded_where(place, has_u, has_v)})")
                    for total, left in zip(totals, lefts, strict=True):
                        self.add_dot(total, self.of_set(left), matrix)
            for name, total in zip(names, totals, strict=True):
                more = f" + {name}" if started else ""
                self.emit(f"{name} = {term.scale!r} * {total}{more}")
            started = True
        return names
