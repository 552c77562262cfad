"""The arguments of fused kernels, and the gate that they apply."""

from __future__ import annotations

import dataclasses

from eqfuse.ops.backends.triton.functions import activated
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.backends.triton.text import DenseEmitter
from eqfuse.ops.ir.form import Segment
from eqfuse.ops.ir.fused import IDENTITY, Fused, Part, Tile


@dataclasses.dataclass(frozen=True)
class FusedKernel:
    """A kernel of a fused op and what it is called with."""

    spec: KernelSpec
    inputs: tuple[str, ...]  # names of operands of the op and index arrays
    shares: int = 1  # programs that have the same rows, some of the work each
    rows: int = 1  # of one program


class FusedEmitter(DenseEmitter):
    """Writes a fused kernel.

    An emitter has the methods `column(start)`, which returns the numbers of the columns of a tile
    of the gate, and `mask_of(v, mul)`: which elements of it a part of so many columns has.
    """

    def __init__(
        self,
        fused: Fused,
        dtype: str,
        row: str,  # the variable of the rows that a program has
        columns: int,  # of the gate, at a time
        warps: int,
    ):
        super().__init__(dtype, fused.linear.linear_form.input_precision)
        self.fused, self.form, self.linear = fused, fused.form, fused.linear
        self.row, self.columns, self.warps = row, columns, warps
        self.sums: set[int] = set()  # see `text.program`
        self.parameters = [f"p{n}" for n in range(len(self.linear.parameters))]
        self.set_index = ["set_index"] if fused.num_sets else []

    def kernel(
        self, stem, note, inputs, integers, outputs: dict, scalars=(), shares=1, rows=1
    ) -> FusedKernel:
        """Return the kernel of the lines so far; `outputs` are dtypes by name."""
        spec = self.spec(stem, note, inputs, integers, scalars, outputs, self.warps, self.sums)
        return FusedKernel(spec, tuple(inputs), shares, rows)

    def array_of(self, block: int) -> tuple[str, int]:
        """Return name and row's size of the array that has a block of the pre-activation."""
        array = self.linear.array_of(block)
        return self.fused.arrays[array], self.linear.linear_form.outputs[array].size


@dataclasses.dataclass(frozen=True)
class Place:
    """Columns `v` of a part of the pre-activation: where a component of them lies."""

    t: FusedEmitter
    part: Part
    v: str

    @property
    def block(self) -> Segment:
        return self.t.linear.blocks_out[self.part.block]

    @property
    def mask(self) -> str:
        return self.t.mask_of(self.v, self.part.mul)

    def of_z(self, prefix: str, k: int) -> str:
        """Return the address in an array of the pre-activation or of its cotangents."""
        name, size = self.t.array_of(self.part.block)
        pointer = {"": name, "ct_": f"ct_{name}"}.get(prefix, prefix)
        offset = self.block.offset + self.part.first * self.block.dim
        return (
            f"{pointer}_ptr + {self.t.row} * {size} + {offset} + {self.v} * {self.block.dim} + {k}"
        )

    def of_out(self, pointer: str, tile: Tile, k: int) -> str:
        """Return the address in the gated row or in its cotangent."""
        place = f"{tile.offset} + {self.v} * {self.block.dim} + {k}"
        return f"{pointer}_ptr + {self.t.row} * {self.t.fused.sizes[0]} + {place}"

    def load(self, address: str) -> str:
        return self.t.load(address, self.mask)

    def store(self, address: str, value: str):
        self.t.emit(f"tl.store({address}, {value}, mask={self.mask})")


def _columns(t: FusedEmitter, tile: Tile):
    return t.block(f"for column in tl.range(0, {tile.part.mul}, {t.columns}, num_stages=1):")


def write_gated(t: FusedEmitter, tile: Tile):
    """Write a tile of the output, from the pre-activation in memory."""
    with _columns(t, tile):
        v = t.column(0)
        place = Place(t, tile.part, v)
        values = [place.load(place.of_z("", k)) for k in range(place.block.dim)]
        if tile.gate:
            gate = Place(t, tile.gate, v)
            act = activated(t, tile.act, gate.load(gate.of_z("", 0)))
            values = [f"{act} * {value}" for value in values]
        else:
            values = [activated(t, tile.act, value) for value in values]
        for k, value in enumerate(values):
            place.store(place.of_out("out", tile, k), value)


def write_cotangent(t: FusedEmitter, tile: Tile, has_ct_z: bool):
    """Write the cotangent of the parts of the pre-activation that a tile is made of."""
    with _columns(t, tile):
        v = t.column(0)
        place = Place(t, tile.part, v)
        components = range(place.block.dim)
        cts = [place.load(place.of_out("ct_out", tile, k)) for k in components]
        if tile.act == IDENTITY and tile.gate is None:
            results = [(place, cts)]
        else:
            z = [place.load(place.of_z("z", k)) for k in components]
            if tile.gate is None:
                slopes = [activated(t, tile.act, x, 1) for x in z]
                pairs = zip(cts, slopes, strict=True)
                results = [(place, [f"{ct} * {slope}" for ct, slope in pairs])]
            else:
                gate = Place(t, tile.gate, v)
                x = gate.load(gate.of_z("z", 0))
                act, slope = (activated(t, tile.act, x, order) for order in (0, 1))
                total = " + ".join(f"{ct} * {value}" for ct, value in zip(cts, z, strict=True))
                results = [(place, [f"{ct} * {act}" for ct in cts])]
                results.append((gate, [f"({total}) * {slope}"]))
        for at, values in results:
            for k, value in enumerate(values):
                more = f" + {at.load(at.of_z('ct_', k))}" if has_ct_z else ""
                at.store(at.of_z("dz", k), value + more)
