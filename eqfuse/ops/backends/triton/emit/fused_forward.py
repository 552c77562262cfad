"""A fused op over rows as the text of one Triton kernel.

A program computes the product of a tile of rows, some channels of a segment at a time, multiplies
each component by the matrices of the Linear, and adds up the pre-activation in registers; the
product is never in memory. At the end it writes the pre-activation, and from there the gate.
"""

import contextlib

from eqfuse.ops.backends.triton.emit.emitter import SLICE
from eqfuse.ops.backends.triton.emit.fused_emitter import (
    FusedEmitter,
    FusedKernel,
    width_for,
)
from eqfuse.ops.backends.triton.emit.gate_tiles import write_gated
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.gates import Part, Tile

SUMS = 96
"""Sums of the pre-activation that a thread has, at most; one in float64 counts twice."""


def forward(fused: Fused, dtype: str) -> FusedKernel:
    """Return the kernel of a fused op: writes out, and z too if there is a gate."""
    return _Forward(fused, dtype).kernel_of_all()


class _Forward(FusedEmitter):
    def __init__(self, fused: Fused, dtype: str):
        width = width_for(max(b.mul for b in fused.linear.blocks_out))
        super().__init__(fused, dtype, SLICE, width)

    def kernel_of_all(self) -> FusedKernel:
        """Return the whole text."""
        shares = self._shares()
        self.begin(len(shares))
        self.row_pointers(self.form.inputs)
        for n, (parts, tiles) in enumerate(shares):
            alone = len(shares) == 1
            with contextlib.nullcontext() if alone else self.block(f"if share == {n}:"):
                self._write(parts)
                if tiles:
                    self.emit("tl.debug_barrier()")
                for tile in tiles:
                    write_gated(self, tile)
        inputs = self.inputs(*(["skip"] if self.fused.skip else []))
        outputs = dict.fromkeys(self.fused.outputs, self.dtype)
        return self.kernel("fused", "product, Linear and gate of", inputs, outputs, len(shares))

    def _shares(self) -> list[tuple[list[Part], list[Tile]]]:
        """Return the parts of the pre-activation, and the tiles of the gate, of each program."""
        blocks, shares, sums = self.linear.blocks_out, [], 0
        if self.fused.gate is None:
            whole = [Part(n, 0, block.mul) for n, block in enumerate(blocks)]
            units = [([part], []) for w in whole for part in w.cut(self.width)]
        else:
            tiles = [t for w in self.fused.gate.tiles for t in w.cut(self.dim(w.part), self.width)]
            units = [([t.part, *([t.gate] if t.gate else [])], [t]) for t in tiles]
        for parts, tiles in units:
            elements = sum(self.dim(p) for p in parts) * self.rows * self.width
            more = elements // (32 * self.warps) * (2 if self.dtype == "float64" else 1)
            if not shares or sums + more > SUMS:
                shares.append(([], []))
                sums = 0
            sums += more
            shares[-1][0].extend(parts)
            shares[-1][1].extend(tiles)
        return shares

    def _write(self, parts: list[Part]):
        """Write parts of the pre-activation."""
        z = {p: [f"z_{p.block}_{p.first}_{k}" for k in range(self.dim(p))] for p in parts}
        for name in (name for names in z.values() for name in names):
            self.emit(f"{name} = {self.zeros(self.rows, self.width)}")
        with self.all_channels():
            self.lanes(self.form.inputs)
            for segment in self.segments():
                pairs = [
                    (part, term)
                    for term in self.terms_of(segment)
                    for part in parts
                    if self.linear.block_of(term) == part.block
                ]
                if pairs:
                    with self.apart(segment):
                        self._add_linear(segment, pairs, z)
        for part, names in z.items():
            self._finish(part, names)

    def _add_linear(self, segment: int, pairs, z):
        """Add the Linear of a segment of the product to the parts that read it."""
        s = self.out.segments[segment]
        components = self.product(segment)
        scaled: dict[float, list[str]] = {}
        for scale in (term.scale for _, term in pairs):
            if scale not in scaled:
                # the mask keeps the layout of factors, a copy for each warp, from the product
                values = (f"tl.where(lane < {s.mul}, {scale!r} * {c}, 0.0)" for c in components)
                scaled[scale] = [self.name(value) for value in values]
        self.emit(f"u = (chunk * {self.channels} + tl.arange(0, {self.channels}))[:, None]")
        self.emit(f"v = tl.arange(0, {self.width})[None, :]")
        with self.sets():
            for part, term in pairs:
                first, step = self.rows_of(segment, term)
                mul = self.linear.blocks_out[part.block].mul
                place = f"({first} + u * {step}) * {mul} + {part.first} + v"
                mask = f"(u < {s.mul}) & (v < {part.mul})"
                matrix = self.factor(f"{self.parameter(term, 'which')} + {place}", mask)
                for total, component in zip(z[part], scaled[term.scale], strict=True):
                    self.add_dot(total, self.of_set(component), matrix)

    def _finish(self, part: Part, names: list[str]):
        """Add bias and skip to a part of the pre-activation, and write it."""
        v, linear = f"tl.arange(0, {self.width})[None, :]", self.linear
        mask = f"present & ({v} < {part.mul})"
        for term in linear.biases(part.block):
            bias = self.load(f"{self.parameter(term, 'set_index')} + {part.first} + {v}", mask)
            self.emit(f"{names[0]} += {bias}")
        array, block = linear.array_of(part.block), linear.blocks_out[part.block]
        size = linear.linear_form.outputs[array].size
        for k, name in enumerate(names):
            place = (
                f"row * {size} + {block.offset + part.first * block.dim + k} + {v} * {block.dim}"
            )
            if self.fused.skip:
                self.emit(f"{name} += {self.load(f'skip_ptr + {place}', mask)}")
            self.emit(f"tl.store({self.fused.arrays[array]}_ptr + {place}, {name}, mask={mask})")
